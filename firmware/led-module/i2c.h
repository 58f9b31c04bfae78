// i2c.h: writes of one I2C master, byte by byte in interrupts. Each transfer ends within a bound, even if the bus is
// stuck.
//
//            writeI2C            last byte             STOP complete
//     idle ------------> sending ---------> stopping ----------------> idle, TRANSFER_DONE or TRANSFER_NACKED
//                           |        NACK       |
//                           +------------------>+
//                           | I2C_TICKS_MAX     |
//                           v                   v
//                 nine clock pulses and STOP; one more attempt, then idle, TRANSFER_FAILED
#ifndef I2C_H
#define I2C_H

#include <stdbool.h>
#include <stdint.h>

// Longest transfer after the address: a command byte and eleven registers.
enum { I2C_BYTES_MAX = 12 };

// Bound of one attempt in ticks of 10 ms. The longest transfer takes 1.2 ms at 100 kHz.
enum { I2C_TICKS_MAX = 2 };

typedef enum {
    TRANSFER_NONE,   // No transfer has ended since the last poll, and the bus is idle.
    TRANSFER_BUSY,   // A transfer uses the bus.
    TRANSFER_DONE,   // The slave acknowledged every byte.
    TRANSFER_NACKED, // The slave did not acknowledge its address or a byte.
    TRANSFER_FAILED, // The bus stays stuck after recovery, or got stuck twice.
} Transfer;

// Assigns the pins, makes the controller a 100 kHz master for `slave` (a 7-bit address), and enables its interrupts.
void initI2C(uint8_t slave);

// Copies the bytes and sends START. Returns false, and sends nothing, if a transfer uses the bus or `count` is not 1 to
// I2C_BYTES_MAX. pollI2C reports the end.
bool writeI2C(const uint8_t *bytesArray, uint8_t count);

// Ends or aborts the transfer. Returns each result once. Call it in every pass of the main loop.
Transfer pollI2C(void);

// Returns true while a transfer uses the bus.
bool isI2CBusy(void);

// Returns true while STOP is on the bus: it ends within a bit time, without an interrupt, so the CPU must not sleep.
bool isI2CStopping(void);

// Numbers since the reset; they stay at 255.
uint8_t nackCount(void);
uint8_t recoveryCount(void);

// For the interrupt handlers of the HAL: the controller can take the next byte; the slave did not acknowledge.
void i2cTransmitInterrupt(void);
void i2cNackInterrupt(void);

#endif

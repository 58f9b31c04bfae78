// tca6507.h: the LED driver: seven outputs, two PWM banks, eleven registers (SCPS164, section 8.6).
//
// The driver's registers are written only, so a shadow copy holds what the driver has acknowledged. Every function
// starts one transfer and returns. It returns false, or changes nothing, if a transfer uses the bus.
#ifndef TCA6507_H
#define TCA6507_H

#include <stdbool.h>
#include <stdint.h>

// 1000101: the 7-bit address. It is fixed (SCPS164, section 8.5.3). The write byte is 0x8A.
enum { TCA6507_ADDRESS = 0x45 };

enum {
    REGISTER_SELECT0 = 0x00,
    REGISTER_SELECT1 = 0x01,
    REGISTER_SELECT2 = 0x02,
    REGISTER_FADE_ON = 0x03,
    REGISTER_INTENSITY = 0x08,
    REGISTER_MASTER = 0x09,
    REGISTER_INITIALIZATION = 0x0a,
    REGISTERS = 11,
};

// Registers of time codes of a bank: fade on, fully on, fade off, first fully off, second fully off (0x03 to 0x07).
enum { TIME_CODES = 5 };
// Bytes of the select registers.
enum { PORT_VALUES = 3 };
// P1 to P6. P0 is not connected (E-K14).
enum { USED_PORTS = 0x7e };
enum { LEVEL_MAX = 15 };

// Sets the shadow copy to the values of the driver after its reset.
void resetShadow(void);

// Writes all eleven registers in one transfer: these select bytes, the shadow copy of registers 0x03 to 0x09, and a
// restart of both banks.
bool initTCA6507(const uint8_t portValues[PORT_VALUES]);

// Writes all eleven registers in one transfer from the shadow copy.
bool restoreTCA6507(void);

// Writes one register. Returns false also for a register above 0x0A: 0x0B to 0x0F are reserved.
bool transmitCommand(uint8_t registerAddress, uint8_t value);

// Change the maximum intensity of a bank by one level and write it. They return the new level, which stays between 0
// and LEVEL_MAX.
uint8_t incrementPWM0(void);
uint8_t incrementPWM1(void);
uint8_t decrementPWM0(void);
uint8_t decrementPWM1(void);

// Writes the maximum intensity of a bank (0 or 1), 0 to LEVEL_MAX.
bool setLevel(uint8_t bank, uint8_t level);

// Writes the master intensity, 0 to LEVEL_MAX. The one-shot bits of the register stay.
bool setMasterLevel(uint8_t level);

// Writes the five time codes (0 to 15) of a bank (0 or 1) and restarts the bank. The other bank keeps its times.
bool setTimes(uint8_t bank, const uint8_t codes[TIME_CODES]);

// Returns the acknowledged value of a register below REGISTERS.
uint8_t shadowOf(uint8_t registerAddress);

// Takes the bytes of the transfer into the shadow copy. Call it when the transfer has ended with TRANSFER_DONE.
void acceptTransfer(void);

#endif

// hal.h: the functions that the portable code needs from a microcontroller.
//
// There are three implementations: msp430/hal.c (the product), avr/hal.c (the second controller) and host/hal.c (the
// fake for tests). The portable code contains no register.
//
// Each implementation calls five functions from its interrupt handlers: tickInterrupt (module.h), uartReceiveInterrupt
// and uartTakeByte (uart.h), i2cTransmitInterrupt and i2cNackInterrupt (i2c.h).
#ifndef HAL_H
#define HAL_H

#include <stdbool.h>
#include <stdint.h>

// Keeps the compiler from moving an access to memory across this call: an interrupt then sees plain variables and
// volatile flags in program order. clang-14 cannot compile atomic_signal_fence for the MSP430.
static inline void orderAccesses(void)
{
    __asm__ volatile("" ::: "memory");
}

// Bits of halResetCause: those of IFG1 of the MSP430 (SLAS735, "Special Function Registers").
enum {
    RESET_WATCHDOG = 0x01,
    RESET_POWER_ON = 0x04,
    RESET_PIN = 0x08,
    RESET_NMI = 0x10,
};

// Starts clocks, pins, the 10 ms tick, the UART and the watchdog. Interrupts stay disabled.
void halInit(void);
void halEnableInterrupts(void);

// Returns false if the clock runs uncalibrated because the calibration constants in flash are erased.
bool halClockIsCalibrated(void);

// Returns the causes of the last reset, which halInit read and cleared.
uint8_t halResetCause(void);

// Stops the CPU until an interrupt handler has run. Returns at once if a handler has run since the last return.
void halSleep(void);

// Restarts the watchdog's period of about 33 ms.
void halFeedWatchdog(void);

// Sets the EN pin of the LED driver. A low level resets the driver (SCPS164, section 8.4.2).
void halEnableDriver(void);

// Resets the I2C controller and prepares it as a 100 kHz master for `slave`, a 7-bit address.
void halI2cInit(uint8_t slave);
// Sends START and the slave's address with the write bit.
void halI2cStart(void);
// Sends one byte. Only for interrupt handlers.
void halI2cSend(uint8_t byte);
// Sends STOP after the byte on the bus. Only for interrupt handlers.
void halI2cStop(void);
// Returns true if STOP is complete and the bus is free.
bool halI2cIsStopped(void);

// Levels that halI2cDrive pulls to ground; the pull-up resistors raise the other line.
enum { I2C_SCL_LOW = 1, I2C_SDA_LOW = 2 };

// Disconnects both lines from the I2C controller, so that halI2cDrive controls them until halI2cInit.
void halI2cTakePins(void);
// Drives the lines as open drain: pulls the lines in `low` to ground, releases the others, and waits half a bit.
void halI2cDrive(uint8_t low);
bool halI2cSclIsHigh(void);
bool halI2cSdaIsHigh(void);

// Makes the transmit interrupt of the UART call uartTakeByte until it returns false.
void halUartStart(void);

// Measures the light sensor in 10 bits. Returns false if the converter does not finish within its bound.
bool halReadLight(uint16_t *value);

#endif

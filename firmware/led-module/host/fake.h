// fake.h: a microcontroller, an I2C bus with an LED driver, and a host on the UART, for tests. It implements hal.h.
//
// Time stands still: fakeRun makes passes of the main loop and delivers interrupts until nothing is left to do;
// fakeTick advances one tick of 10 ms. A violation of the bus protocol aborts the program with a message.
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_TRACE_MAX = 4096 };

// Faults and inputs that a test sets. fakeClear clears them.
typedef struct {
    uint8_t resetCause;
    bool isUncalibrated;
    int nackAt;         // Byte of each transfer that the driver does not acknowledge: 0 is the address; -1 is none.
    bool startHangs;    // START does not take place, and no interrupt occurs.
    bool stopHangs;     // STOP does not complete.
    int sdaHeldPulses;  // SDA is low until as many clock pulses; a negative number never ends.
    bool isSclHeld;     // SCL is low.
    bool isUartStalled; // No byte leaves the UART.
    bool isLightStuck;  // The converter does not finish.
    uint16_t light;
} FakeSettings;

// Outputs of the firmware. fakeClear and fakePowerOn clear them.
typedef struct {
    // The bus: `S` START, `N` NACK, `P` STOP, `R` reset of the controller, bytes in hex; for example `S 8a 08 5f P`.
    char bus[FAKE_TRACE_MAX];
    // Bytes that left the UART.
    char sent[FAKE_TRACE_MAX];
    unsigned watchdogFeeds;
    unsigned clockPulses;
    bool isDriverEnabled;
    uint8_t slave;
} FakeTrace;

extern FakeSettings fake;
extern FakeTrace trace;

// Clears settings and traces, without a reset of the firmware.
void fakeClear(void);
// Resets the firmware with the present settings, and runs it.
void fakePowerOn(void);
// Runs the main loop and all interrupts that are due. Aborts if the firmware does not come to rest.
void fakeRun(void);
// Advances one tick and runs.
void fakeTick(void);
void fakeTicks(unsigned count);
// Delivers bytes to the receive interrupt, without passes of the main loop.
void fakeReceive(const char *bytes, size_t count);
// Makes one transmit interrupt of the UART, even if it is stalled.
void fakeSendByte(void);
void fakeClearTraces(void);

#endif

#include "host/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hal.h"
#include "i2c.h"
#include "module.h"
#include "tca6507.h"
#include "uart.h"

FakeSettings fake;
FakeTrace trace;

// The controller like USCI_B0: one byte in the shift register, one in the buffer (SLAU144, "USCI, I2C Mode").
static struct {
    bool isReset;
    bool isActive;      // Between START and STOP.
    bool isBufferFull;
    bool isAsking;      // The transmit interrupt is due.
    bool isStopAsked;
    bool isNacked;
    int shifted;        // Bytes after START that the slave has seen, with the address.
    uint8_t buffer;
    uint8_t command;    // First byte after the address.
} bus;

static bool arePinsTaken;
static uint8_t driven;
static bool isTransmitting;
static bool areInterruptsEnabled;

static void violate(const char *text)
{
    fprintf(stderr, "violation of the bus protocol: %s\nbus: %s\n", text, trace.bus);
    abort();
}

static void expect(bool condition, const char *text)
{
    if (!condition)
        violate(text);
}

static void append(char *text, const char *added)
{
    if (strlen(text) + strlen(added) < FAKE_TRACE_MAX)
        strcat(text, added);
}

static void record(const char *mark)
{
    if (trace.bus[0] != 0)
        append(trace.bus, " ");
    append(trace.bus, mark);
}

static void recordByte(uint8_t byte)
{
    char text[3];
    snprintf(text, sizeof(text), "%02x", byte);
    record(text);
}

void fakeClearTraces(void)
{
    memset(&trace, 0, sizeof(trace));
}

void fakeClear(void)
{
    memset(&fake, 0, sizeof(fake));
    memset(&bus, 0, sizeof(bus));
    fake.nackAt = -1;
    fake.resetCause = RESET_POWER_ON;
    fakeClearTraces();
    arePinsTaken = isTransmitting = areInterruptsEnabled = false;
    driven = 0;
}

static bool isSdaStuck(void)
{
    return fake.sdaHeldPulses != 0;
}

// -- hal.h ------------------------------------------------------------------------------------------------------------

void halInit(void)
{
}

void halEnableInterrupts(void)
{
    areInterruptsEnabled = true;
}

bool halClockIsCalibrated(void)
{
    return !fake.isUncalibrated;
}

uint8_t halResetCause(void)
{
    return fake.resetCause;
}

void halSleep(void)
{
}

void halFeedWatchdog(void)
{
    trace.watchdogFeeds++;
}

void halEnableDriver(void)
{
    trace.isDriverEnabled = true;
}

void halI2cInit(uint8_t slave)
{
    if (bus.isActive || arePinsTaken)
        record("R");
    memset(&bus, 0, sizeof(bus));
    arePinsTaken = false;
    driven = 0;
    trace.slave = slave;
}

void halI2cStart(void)
{
    expect(!bus.isActive && !arePinsTaken, "START while the bus is in use");
    memset(&bus, 0, sizeof(bus));
    bus.isActive = true;
    if (fake.startHangs || isSdaStuck() || fake.isSclHeld)
        return;
    record("S");
    recordByte((uint8_t)(trace.slave << 1));
    bus.isAsking = true;
}

void halI2cSend(uint8_t byte)
{
    expect(bus.isActive && !bus.isBufferFull && !bus.isStopAsked, "a byte that the controller did not ask for");
    bus.buffer = byte;
    bus.isBufferFull = true;
}

void halI2cStop(void)
{
    expect(bus.isActive && !bus.isStopAsked, "a second STOP");
    bus.isStopAsked = true;
    bus.isAsking = false;
}

bool halI2cIsStopped(void)
{
    return !bus.isActive;
}

void halI2cTakePins(void)
{
    arePinsTaken = true;
    driven = 0;
    bus.isAsking = false;
}

void halI2cDrive(uint8_t low)
{
    expect(arePinsTaken, "drives pins of the controller");
    bool isRising = (driven & I2C_SCL_LOW) != 0 && (low & I2C_SCL_LOW) == 0 && !fake.isSclHeld;
    driven = low;
    if (isRising) {
        trace.clockPulses++;
        if (fake.sdaHeldPulses > 0)
            fake.sdaHeldPulses--;
    }
}

bool halI2cSclIsHigh(void)
{
    return (driven & I2C_SCL_LOW) == 0 && !fake.isSclHeld;
}

bool halI2cSdaIsHigh(void)
{
    return (driven & I2C_SDA_LOW) == 0 && !isSdaStuck();
}

void halUartStart(void)
{
    isTransmitting = true;
}

bool halReadLight(uint16_t *value)
{
    if (fake.isLightStuck)
        return false;
    *value = fake.light;
    return true;
}

// -- Interrupts -------------------------------------------------------------------------------------------------------

static void checkByte(uint8_t byte)
{
    if (bus.shifted == 1) {
        bus.command = byte;
        expect((byte & 0xe0) == 0, "bits 7 to 5 of the command byte are not 0");
        expect((byte & 0x0f) < REGISTERS, "a reserved register");
    } else {
        int target = (bus.command & 0x0f) + (bus.shifted - 2);
        expect((bus.command & 0x10) != 0 || bus.shifted == 2, "two data bytes without auto-increment");
        expect(target < REGISTERS, "auto-increment beyond the last register");
    }
}

// Ends the byte in the shift register: the driver acknowledges it or not.
static void endByte(void)
{
    if (!bus.isNacked && fake.nackAt == bus.shifted) {
        bus.isNacked = true;
        bus.isBufferFull = false;
        bus.isAsking = false;
        record("N");
        i2cNackInterrupt();
    } else if (bus.isBufferFull && !bus.isNacked) {
        bus.shifted++;
        checkByte(bus.buffer);
        recordByte(bus.buffer);
        bus.isBufferFull = false;
        bus.isAsking = true;
    } else if (bus.isStopAsked && !fake.stopHangs) {
        record("P");
        bus.isActive = false;
    }
}

// Delivers one interrupt of the I2C controller. Returns false if the bus waits.
static bool advanceBus(void)
{
    if (!bus.isActive || arePinsTaken || (bus.shifted == 0 && !bus.isAsking && !bus.isBufferFull && !bus.isStopAsked))
        return false;
    if (bus.isAsking) {
        bus.isAsking = false;
        i2cTransmitInterrupt();
        return true;
    }
    if (bus.isStopAsked && fake.stopHangs && !bus.isBufferFull && (bus.isNacked || fake.nackAt != bus.shifted))
        return false;
    endByte();
    return true;
}

void fakeSendByte(void)
{
    uint8_t byte;
    char text[2] = {0, 0};
    if (!isTransmitting)
        return;
    if (!uartTakeByte(&byte)) {
        isTransmitting = false;
        return;
    }
    text[0] = (char)byte;
    append(trace.sent, text);
}

void fakeRun(void)
{
    for (int passes = 0; passes < 10000; passes++) {
        bool maySleep = pollModule();
        bool isAdvanced = advanceBus();
        if (!fake.isUartStalled && isTransmitting) {
            fakeSendByte();
            isAdvanced = true;
        }
        // While STOP hangs, the main loop polls without sleep until its bound.
        if (!isAdvanced && (maySleep || fake.stopHangs))
            return;
    }
    violate("the firmware does not come to rest");
}

void fakeTick(void)
{
    tickInterrupt();
    fakeRun();
}

void fakeTicks(unsigned count)
{
    for (; count != 0; count--)
        fakeTick();
}

void fakeReceive(const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        uartReceiveInterrupt((uint8_t)bytes[i]);
}

void fakePowerOn(void)
{
    fakeClearTraces();
    memset(&bus, 0, sizeof(bus));
    arePinsTaken = isTransmitting = false;
    initModule();
    expect(areInterruptsEnabled, "interrupts are not enabled");
    fakeRun();
}

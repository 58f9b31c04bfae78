// Fuzzes the command line together with the bus: bytes from the UART, ticks and faults in any order.
//
// A byte below 0x80 reaches the receive interrupt. A byte from 0x80 on is an action: see `act`. The action SIGN
// completes a line with its CRC, so that the fuzzer reaches the commands. The fake aborts on a violation of the bus
// protocol. This file checks every line that the firmware sends, and that the firmware rests within its bound.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/fake.h"
#include "i2c.h"
#include "line.h"
#include "module.h"

enum {
    RUN = 0x80,      // Runs the main loop and the interrupts.
    TICK = 0x81,     // Advances one tick.
    SIGN = 0x82,     // Receives `*CCCC\n` for the bytes since the last line feed, and runs.
    SEND = 0x83,     // Lets one byte leave the UART.
    INVALID = 0x84,  // Receives a byte outside of ASCII.
    STALL = 0x85,    // Stops or starts the transmitter.
    SCL = 0x86,      // Holds or frees SCL.
    HANG = 0x87,     // START hangs or works.
    STOP = 0x88,     // STOP hangs or works.
    LIGHT = 0x89,    // The converter hangs or works.
    NACK = 0x90,     // 0x90 to 0x9f: the driver acknowledges all bytes but one; 0x9f: all.
    HOLD = 0xa0,     // 0xa0 to 0xaf: SDA is held for 0 to 14 clock pulses; 0xaf: without end.
    TICKS = 0xb0,    // 0xb0 to 0xff: advances 1 to 80 ticks.
};

static uint8_t line[256];
static size_t lineLength;

static void fail(const char *text, const char *detail)
{
    fprintf(stderr, "%s: %s\nbus: %s\nsent: %s\n", text, detail, trace.bus, trace.sent);
    abort();
}

static uint16_t crcOf(const uint8_t *bytes, size_t count)
{
    uint16_t crc = CRC_INITIAL;
    for (size_t i = 0; i < count; i++)
        crc = crcOfByte(crc, bytes[i]);
    return crc;
}

static void receiveByte(uint8_t byte)
{
    char one = (char)byte;
    fakeReceive(&one, 1);
    if (byte == '\n')
        lineLength = 0;
    else if (lineLength < sizeof(line))
        line[lineLength++] = byte;
}

static void sign(void)
{
    char text[8];
    snprintf(text, sizeof(text), "*%04x\n", crcOf(line, lineLength));
    fakeReceive(text, strlen(text));
    lineLength = 0;
    fakeRun();
}

static void act(uint8_t action)
{
    if (action >= TICKS) {
        fakeTicks(action - TICKS + 1u);
        return;
    }
    if (action >= HOLD) {
        fake.sdaHeldPulses = action == HOLD + 15 ? -1 : action - HOLD;
        return;
    }
    if (action >= NACK) {
        fake.nackAt = action == NACK + 15 ? -1 : action - NACK;
        return;
    }
    switch (action) {
    case RUN:
        fakeRun();
        break;
    case TICK:
        fakeTick();
        break;
    case SIGN:
        sign();
        break;
    case SEND:
        fakeSendByte();
        break;
    case INVALID:
        receiveByte(0xc3);
        break;
    case STALL:
        fake.isUartStalled = !fake.isUartStalled;
        break;
    case SCL:
        fake.isSclHeld = !fake.isSclHeld;
        break;
    case HANG:
        fake.startHangs = !fake.startHangs;
        break;
    case STOP:
        fake.stopHangs = !fake.stopHangs;
        break;
    case LIGHT:
        fake.isLightStuck = !fake.isLightStuck;
        break;
    default:
        break;
    }
}

// Checks one line that the firmware sent, without its line feed: ASCII, its CRC, and the form of a reply or an event.
static void checkLine(const char *text, size_t length)
{
    char crc[8];
    if (length < 9 || length >= LINE_BYTES_MAX)
        fail("a line has a wrong length", text);
    for (size_t i = 0; i < length; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            fail("a line has a byte outside of ASCII", text);
    snprintf(crc, sizeof(crc), "*%04x", crcOf((const uint8_t *)text, length - 5));
    if (strncmp(text + length - 5, crc, 5) != 0)
        fail("a line has a wrong CRC", text);
    bool isEvent = strncmp(text, "ev ", 3) == 0;
    bool isUnnumbered = strncmp(text, "-- err ", 7) == 0;
    bool isReply = strncmp(text + 2, " ok", 3) == 0 || strncmp(text + 2, " err ", 5) == 0;
    if (!isEvent && !isUnnumbered && !isReply)
        fail("a line is no reply and no event", text);
}

static void checkSent(void)
{
    const char *at = trace.sent;
    for (const char *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
        checkLine(at, (size_t)(end - at));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fakeClear();
    lineLength = 0;
    fakePowerOn();
    for (size_t i = 0; i < size; i++) {
        if (data[i] < 0x80)
            receiveByte(data[i]);
        else
            act(data[i]);
    }
    // All faults end. Within the bound of two attempts, the firmware is free and answers a request.
    fakeReceive("\n", 1);
    fake.nackAt = -1;
    fake.sdaHeldPulses = 0;
    fake.isUartStalled = fake.isSclHeld = fake.startHangs = fake.stopHangs = fake.isLightStuck = false;
    fakeTicks(2 * (I2C_TICKS_MAX + 2));
    checkSent();
    if (isI2CBusy())
        fail("the bus is in use after its bound", "");
    fakeClearTraces();
    trace.slave = 0x45;
    lineLength = 0;
    for (const char *byte = "3c l 00"; *byte != 0; byte++)
        receiveByte((uint8_t)*byte);
    sign();
    if (strstr(trace.sent, "3c ok 00*") == NULL)
        fail("no reply after all faults have ended", "");
    checkSent();
    return 0;
}

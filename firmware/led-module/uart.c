#include "uart.h"

#include "hal.h"

// A power of two, so that an index wraps by a mask. It holds the two messages after a reset, and a reply.
enum { RING_BYTES = 64, RING_MASK = RING_BYTES - 1 };

// Shared between the receive interrupt and the main loop. While `lineIsComplete` is false, only the interrupt writes
// `line` and `lineLength`; while it is true, only the main loop may change them.
static uint8_t line[LINE_BYTES_MAX];
static volatile uint8_t lineLength;
static volatile bool lineIsComplete;

// The interrupt sets these flags, and the main loop clears them.
static volatile bool lineWasLong;
static volatile bool lineWasDropped;

// Only for the receive interrupt: the rest of the line under reception is discarded.
static bool isTooLong;
static bool isDropping;

// Shared between the main loop, which writes `head`, and the transmit interrupt, which writes `tail`. Both are free
// running; each is one byte, so that its access is atomic.
static uint8_t ring[RING_BYTES];
static volatile uint8_t head;
static volatile uint8_t tail;

// `tail` at the last pollUart, and whether bytes were queued then.
static uint8_t tailBefore;
static bool wasQueued;

void initUart(void)
{
    lineLength = 0;
    lineIsComplete = lineWasLong = lineWasDropped = false;
    isTooLong = isDropping = false;
    head = tail = tailBefore = 0;
    wasQueued = false;
}

const uint8_t *receivedLine(uint8_t *length)
{
    if (!lineIsComplete)
        return 0;
    orderAccesses();
    *length = lineLength;
    return line;
}

void releaseLine(void)
{
    lineLength = 0;
    orderAccesses(); // All reads of the line are complete.
    lineIsComplete = false;                    // From here on the interrupt owns the buffer.
}

Code takeReceiveError(void)
{
    if (lineWasLong) {
        lineWasLong = false;
        return CODE_LONG;
    }
    if (lineWasDropped) {
        lineWasDropped = false;
        return CODE_BUSY;
    }
    return CODE_NONE;
}

bool hasRoom(uint8_t count)
{
    return (uint8_t)(head - tail) <= RING_BYTES - count;
}

void sendBytes(const uint8_t *bytes, uint8_t count)
{
    uint8_t next = head;
    for (; count != 0; count--)
        ring[next++ & RING_MASK] = *bytes++;
    orderAccesses(); // The interrupt sees the bytes before the new head.
    head = next;
    halUartStart();
}

bool pollUart(void)
{
    uint8_t now = tail;
    bool isStalled = wasQueued && now == tailBefore;
    wasQueued = now != head;
    tailBefore = now;
    return !isStalled;
}

// Ends the line under reception at its line feed. An empty line is ignored: a host may send one to end a torn line.
static void endLine(void)
{
    if (isDropping)
        lineWasDropped = true;
    else if (isTooLong)
        lineWasLong = true;
    else if (!lineIsComplete) {
        if (lineLength != 0 && line[lineLength - 1] == '\r')
            lineLength--;
        orderAccesses(); // The main loop sees the bytes before the flag.
        lineIsComplete = lineLength != 0;
        return;
    }
    if (!lineIsComplete)
        lineLength = 0;
    isDropping = isTooLong = false;
}

void uartReceiveInterrupt(uint8_t byte)
{
    if (byte == '\n')
        endLine();
    else if (lineIsComplete)
        isDropping = true;
    else if (lineLength == LINE_BYTES_MAX - 1)
        isTooLong = true;
    else if (!isDropping)
        line[lineLength++] = byte;
}

bool uartTakeByte(uint8_t *byte)
{
    if (tail == head)
        return false;
    *byte = ring[tail & RING_MASK];
    tail++;
    return true;
}

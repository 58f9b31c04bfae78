// uart.h: one line buffer for received bytes and one ring for bytes to send.
//
// The receive interrupt collects one line. The line stays in the buffer until the main loop releases it; bytes of a
// further line are discarded meanwhile, and reported once.
#ifndef UART_H
#define UART_H

#include "line.h"

// Empties both buffers.
void initUart(void);

// Returns the received line without its line feed, or a null pointer. The line is valid until releaseLine.
const uint8_t *receivedLine(uint8_t *length);
void releaseLine(void);

// Returns an error of reception that was not yet returned: CODE_LONG, CODE_BUSY, or CODE_NONE. Equal errors that occur
// before the main loop asks are returned once.
Code takeReceiveError(void);

// Returns true if the ring has room for `count` more bytes.
bool hasRoom(uint8_t count);

// Queues the bytes. The caller has checked hasRoom.
void sendBytes(const uint8_t *bytes, uint8_t count);

// Returns false if bytes were queued at the last call and none was sent since: the transmitter does not work.
bool pollUart(void);

// For the interrupt handlers of the HAL.
void uartReceiveInterrupt(uint8_t byte);
// Returns the next byte to send. Returns false if the ring is empty.
bool uartTakeByte(uint8_t *byte);

#endif

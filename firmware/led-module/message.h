// message.h: the one message under construction: a reply or an event.
//
// A reply that waits for the bus stays here until the transfer ends. Its module, command.c, sends no event meanwhile.
#ifndef MESSAGE_H
#define MESSAGE_H

#include "line.h"

// Longest message that this firmware sends, in bytes: `00 ok 1 00 00 00*0000\n`.
enum { MESSAGE_BYTES_MAX = 22 };

// Start the message with a sequence, or with a text: `--` or `ev`.
void startReply(uint8_t sequence);
void startMessage(const char *text);

// Append a text, or a space and the last `digits` (1 to 4) hex digits of a value. A byte that does not fit is dropped.
void addText(const char *text);
void addHex(uint16_t value, uint8_t digits);
// Appends ` err CODE`.
void addError(Code code);

// Appends the CRC and the line feed, and queues the message. The caller has checked that the send buffer has room for
// MESSAGE_BYTES_MAX bytes.
void sendMessage(void);

#endif

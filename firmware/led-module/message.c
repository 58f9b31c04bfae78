#include "message.h"

#include "uart.h"

static uint8_t bytes[MESSAGE_BYTES_MAX];
static uint8_t length;

static void addByte(uint8_t byte)
{
    if (length < MESSAGE_BYTES_MAX)
        bytes[length++] = byte;
}

static void addDigits(uint16_t value, uint8_t digits)
{
    for (uint8_t left = 4; left != 0; left--) {
        uint8_t digit = (uint8_t)(value >> 12);
        value = (uint16_t)(value << 4);
        if (left <= digits)
            addByte((uint8_t)(digit < 10 ? '0' + digit : 'a' + digit - 10));
    }
}

void startReply(uint8_t sequence)
{
    length = 0;
    addDigits(sequence, 2);
}

void startMessage(const char *text)
{
    length = 0;
    addText(text);
}

void addText(const char *text)
{
    for (; *text != 0; text++)
        addByte((uint8_t)*text);
}

void addHex(uint16_t value, uint8_t digits)
{
    addByte(' ');
    addDigits(value, digits);
}

void addError(Code code)
{
    // In the order of `Code`. The MSP430 has no multiplier, so the size of an entry is a power of two.
    static const char names[CODES][8] = {"",    "crc",   "long", "line", "cmd",  "arg",
                                         "reg", "level", "nack", "bus",  "busy", "cal"};
    addText(" err ");
    addText(names[code]);
}

void sendMessage(void)
{
    uint16_t crc = CRC_INITIAL;
    for (uint8_t i = 0; i < length; i++)
        crc = crcOfByte(crc, bytes[i]);
    addByte('*');
    addDigits(crc, 4);
    addByte('\n');
    sendBytes(bytes, length);
}

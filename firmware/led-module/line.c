#include "line.h"

// Bytes of the sequence and of `*CCCC`. The shortest request is `00 v*0000`.
enum { SEQUENCE_BYTES = 2, CRC_FIELD_BYTES = 5, REQUEST_BYTES_MIN = SEQUENCE_BYTES + 2 + CRC_FIELD_BYTES };

uint16_t crcOfByte(uint16_t crc, uint8_t byte)
{
    // Divides eight bits at once. The result equals that of eight shifts; a table would take 512 bytes of flash.
    uint8_t x = (uint8_t)((crc >> 8) ^ byte);
    x ^= (uint8_t)(x >> 4);
    uint16_t wide = x;
    return (uint16_t)((crc << 8) ^ (wide << 12) ^ (wide << 5) ^ wide);
}

// Reads `digits` (1 to 4) lower-case hex digits. Returns false if a byte is none.
static bool readHex(const uint8_t *bytes, uint8_t digits, uint16_t *value)
{
    uint16_t read = 0;
    for (; digits != 0; digits--) {
        uint8_t digit = (uint8_t)(*bytes++ - '0');
        if (digit > 9) {
            digit = (uint8_t)(digit - ('a' - '0'));
            if (digit > 5)
                return false;
            digit += 10;
        }
        read = (uint16_t)(read << 4 | digit);
    }
    *value = read;
    return true;
}

Code parseRequest(const uint8_t *line, uint8_t length, Request *request)
{
    uint16_t expected;
    uint16_t sequence;
    if (length < REQUEST_BYTES_MIN)
        return CODE_LINE;
    const uint8_t *end = line + length - CRC_FIELD_BYTES;
    uint16_t crc = CRC_INITIAL;
    for (const uint8_t *at = line; at != end; at++) {
        if (*at < 0x20 || *at > 0x7e)
            return CODE_LINE;
        crc = crcOfByte(crc, *at);
    }
    if (*end != '*' || !readHex(end + 1, 4, &expected))
        return CODE_LINE;
    if (crc != expected)
        return CODE_CRC;
    if (!readHex(line, SEQUENCE_BYTES, &sequence) || line[SEQUENCE_BYTES] != ' ')
        return CODE_LINE;
    request->sequence = (uint8_t)sequence;
    request->at = line + SEQUENCE_BYTES + 1;
    request->end = end;
    return CODE_NONE;
}

bool takeName(Request *request, const char *name)
{
    // The byte at `end` is `*`, which no name contains, so the loop stops there.
    const uint8_t *at = request->at;
    for (; *name != 0; name++)
        if (*at++ != (uint8_t)*name)
            return false;
    if (at != request->end && *at != ' ')
        return false;
    request->at = at;
    return true;
}

bool takeArguments(Request *request, uint8_t count, uint8_t digits, uint8_t *arguments)
{
    const uint8_t *at = request->at;
    // Each argument has a space and its digits.
    for (uint8_t i = 0; i < count; i++) {
        uint16_t value;
        if (request->end - at <= digits || *at != ' ' || !readHex(at + 1, digits, &value))
            return false;
        at += 1 + digits;
        arguments[i] = (uint8_t)value;
    }
    if (at != request->end)
        return false;
    request->at = at;
    return true;
}

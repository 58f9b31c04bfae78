// line.h: requests of the UART protocol: CRC and parser. Pure functions without registers or state.
//
// A line is ASCII and ends with `*CCCC\n`, where CCCC is the CRC of all bytes before `*`. README.md, "Protocol", lists
// the commands.
#ifndef LINE_H
#define LINE_H

#include <stdbool.h>
#include <stdint.h>

// Longest line in bytes, including its line feed.
enum { LINE_BYTES_MAX = 48 };

// Error codes of replies and events. CODE_NONE means success.
typedef enum {
    CODE_NONE,
    CODE_CRC,   // The CRC of a line does not match.
    CODE_LONG,  // A line has more than LINE_BYTES_MAX bytes.
    CODE_LINE,  // A line is not a request: sequence, separator, CRC field or a byte outside of ASCII.
    CODE_CMD,   // The command is unknown.
    CODE_ARG,   // An argument is missing, malformed or not allowed.
    CODE_REG,   // The register does not exist.
    CODE_LEVEL, // The level is not one hex digit.
    CODE_NACK,  // The LED driver did not acknowledge.
    CODE_BUS,   // The I2C bus is stuck.
    CODE_BUSY,  // The line buffer is full, or the light sensor does not answer.
    CODE_CAL,   // The clock's calibration constants are erased.
    CODES,
} Code;

// A request whose CRC and sequence are valid. `at` advances over the command and its arguments.
typedef struct {
    uint8_t sequence;
    const uint8_t *at;
    const uint8_t *end;
} Request;

// CRC-16/CCITT-FALSE: polynomial 0x1021, initial value CRC_INITIAL, no reflection, no final XOR.
enum { CRC_INITIAL = 0xffff };
uint16_t crcOfByte(uint16_t crc, uint8_t byte);

// Parses a line without its line feed. Returns CODE_NONE, CODE_CRC or CODE_LINE. `request` refers to `line`.
Code parseRequest(const uint8_t *line, uint8_t length, Request *request);

// Reads `name` if a space or the end follows.
bool takeName(Request *request, const char *name);

// Reads `count` arguments, each a space and exactly `digits` (1 or 2) lower-case hex digits, up to the end of the
// request. Returns false, and reads nothing, if they differ.
bool takeArguments(Request *request, uint8_t count, uint8_t digits, uint8_t *arguments);

#endif

// Unit tests of the portable code on the host. Each test starts with a firmware after power-on, whose registers are
// initialised; the traces are empty. `host-test NAME` runs one test.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hal.h"
#include "host/fake.h"
#include "i2c.h"
#include "line.h"
#include "message.h"
#include "module.h"
#include "selftest.h"
#include "tca6507.h"
#include "uart.h"

static unsigned failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("  %s:%d: %s\n", __FILE__, __LINE__, #condition);                                                   \
        }                                                                                                              \
    } while (0)

#define CHECK_TEXT(actual, expected) checkText(__LINE__, actual, expected)

static void checkText(int line, const char *actual, const char *expected)
{
    if (strcmp(actual, expected) == 0)
        return;
    failures++;
    printf("  %s:%d: expected \"%s\"\n  got \"%s\"\n", __FILE__, line, expected, actual);
}

// A CRC by the definition: eight shifts per byte. The firmware uses another algorithm.
static uint16_t crcByShifts(const char *bytes, size_t count)
{
    uint16_t crc = 0xffff;
    for (size_t i = 0; i < count; i++) {
        crc = (uint16_t)(crc ^ (uint8_t)bytes[i] << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)((crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

static const char *withCrc(const char *body)
{
    static char line[256];
    snprintf(line, sizeof(line), "%s*%04x\n", body, crcByShifts(body, strlen(body)));
    return line;
}

static void receive(const char *bytes)
{
    fakeReceive(bytes, strlen(bytes));
}

// Removes the CRC from each sent line after a check, and joins the lines with `|`.
static const char *sentLines(void)
{
    static char text[FAKE_TRACE_MAX];
    text[0] = 0;
    for (const char *at = trace.sent; *at != 0;) {
        const char *end = strchr(at, '\n');
        CHECK(end != NULL && end - at >= 5 && end - at < LINE_BYTES_MAX);
        if (end == NULL || end - at < 5)
            break;
        char crc[8];
        size_t body = (size_t)(end - at) - 5;
        snprintf(crc, sizeof(crc), "*%04x\n", crcByShifts(at, body));
        CHECK(strncmp(at + body, crc, 6) == 0);
        if (text[0] != 0)
            strcat(text, "|");
        strncat(text, at, body);
        at = end + 1;
    }
    return text;
}

// Sends a line and returns all lines that the firmware sends until it rests.
static const char *askRaw(const char *line)
{
    trace.sent[0] = 0;
    receive(line);
    fakeRun();
    return sentLines();
}

// Sends a request with sequence 5a and returns its reply.
static const char *ask(const char *command)
{
    char body[200];
    snprintf(body, sizeof(body), "5a %s", command);
    return askRaw(withCrc(body));
}

static void restart(void)
{
    fakeClear();
    fakePowerOn();
    fakeTick();
    fakeClearTraces();
    trace.slave = TCA6507_ADDRESS;
}

#define INIT_BYTES "S 8a 10 00 00 00 44 44 44 44 44 ff 0f 88 P"

// -- Lines ------------------------------------------------------------------------------------------------------------

static void crc_matches_the_check_value(void)
{
    uint16_t crc = CRC_INITIAL;
    for (const char *at = "123456789"; *at != 0; at++)
        crc = crcOfByte(crc, (uint8_t)*at);
    CHECK(crc == 0x29b1);
}

static void crc_equals_eight_shifts_for_all_states(void)
{
    // All 256 bytes on many states: a step depends on the high byte of the state, the byte, and shifts of the low byte.
    for (unsigned state = 0; state < 0x10000; state += 251)
        for (unsigned byte = 0; byte < 256; byte++) {
            uint16_t crc = (uint16_t)(state ^ byte << 8);
            for (int bit = 0; bit < 8; bit++)
                crc = (uint16_t)((crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1);
            CHECK(crcOfByte((uint16_t)state, (uint8_t)byte) == crc);
        }
}

static Code parse(const char *line)
{
    Request request;
    return parseRequest((const uint8_t *)line, (uint8_t)strcspn(line, "\n"), &request);
}

static void parser_reads_sequence_and_command(void)
{
    Request request;
    uint8_t arguments[2] = {0, 0};
    const char *line = withCrc("a7 w 0a ff");
    CHECK(parseRequest((const uint8_t *)line, (uint8_t)strcspn(line, "\n"), &request) == CODE_NONE);
    CHECK(request.sequence == 0xa7);
    CHECK(!takeName(&request, "wx") && !takeName(&request, "w 0"));
    CHECK(takeName(&request, "w"));
    CHECK(!takeArguments(&request, 1, 2, arguments) && !takeArguments(&request, 3, 2, arguments));
    CHECK(takeArguments(&request, 2, 2, arguments));
    CHECK(arguments[0] == 0x0a && arguments[1] == 0xff);
}

static void parser_refuses_what_is_not_a_request(void)
{
    CHECK(parse(withCrc("00 v")) == CODE_NONE);
    CHECK(parse(withCrc("00 ")) == CODE_LINE);
    CHECK(parse(withCrc("00v ")) == CODE_LINE);
    CHECK(parse(withCrc("0A v")) == CODE_LINE);
    CHECK(parse(withCrc("g0 v")) == CODE_LINE);
    CHECK(parse(withCrc(" 0 v")) == CODE_LINE);
    CHECK(parse(withCrc("")) == CODE_LINE);
    CHECK(parse("00 v") == CODE_LINE);
    CHECK(parse("00 v*12g4") == CODE_LINE);
    CHECK(parse("00 v*12:4") == CODE_LINE);
    CHECK(parse("00 v*1`34") == CODE_LINE);
    CHECK(parse("00 v/1234") == CODE_LINE);
    CHECK(parse("00 v*1234") == CODE_CRC);
    CHECK(parse(withCrc("00 v\x7f")) == CODE_LINE);
    CHECK(parse(withCrc("00 v\x1f")) == CODE_LINE);
    CHECK(parse(withCrc("00 v\t")) == CODE_LINE);
    CHECK(parse(withCrc("00 v\xc3\xa4")) == CODE_LINE);
    CHECK(parse(withCrc("00 v~")) == CODE_NONE);
}

static void upper_case_crc_is_refused(void)
{
    char line[32] = "";
    // A CRC with a letter: the first sequence that has one.
    for (unsigned sequence = 0; sequence < 256 && strpbrk(line + strcspn(line, "*"), "abcdef") == NULL; sequence++) {
        char body[8];
        snprintf(body, sizeof(body), "%02u v", sequence % 100);
        snprintf(line, sizeof(line), "%s", withCrc(body));
    }
    CHECK(parse(line) == CODE_NONE);
    for (char *at = strchr(line, '*'); *at != 0; at++)
        if (*at >= 'a' && *at <= 'f')
            *at = (char)(*at - 'a' + 'A');
    CHECK(parse(line) == CODE_LINE);
}

static void every_changed_bit_is_detected(void)
{
    char line[32];
    snprintf(line, sizeof(line), "%s", withCrc("5a w 08 37"));
    for (size_t bit = 0; bit < 8 * strcspn(line, "\n"); bit++) {
        char changed[32];
        memcpy(changed, line, sizeof(changed));
        changed[bit / 8] = (char)(changed[bit / 8] ^ 1 << bit % 8);
        if (changed[bit / 8] != '\n')
            CHECK(parse(changed) != CODE_NONE);
    }
}

static void wrong_crc_gets_an_unnumbered_error(void)
{
    CHECK_TEXT(askRaw("5a v*0000\n"), "-- err crc");
    CHECK_TEXT(askRaw("hello\n"), "-- err line");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 00");
}

static void carriage_return_before_line_feed_is_ignored(void)
{
    char line[64];
    snprintf(line, sizeof(line), "%s", withCrc("5a v"));
    strcpy(strchr(line, '\n'), "\r\n");
    CHECK_TEXT(askRaw(line), "5a ok 1 04 00 00");
    CHECK_TEXT(askRaw("5a\r v*0000\n"), "-- err line");
}

static void empty_lines_are_ignored(void)
{
    CHECK_TEXT(askRaw("\n\r\n\n"), "");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 00");
}

static void line_of_48_bytes_is_read_and_49_refused(void)
{
    char body[64];
    memset(body, 'x', sizeof(body));
    memcpy(body, "5a v ", 5);
    body[42] = 0; // 42 + 5 bytes of the CRC field + line feed = 48.
    CHECK_TEXT(askRaw(withCrc(body)), "5a err arg");
    body[42] = 'x';
    body[43] = 0;
    CHECK_TEXT(askRaw(withCrc(body)), "-- err long");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 00");
}

static void endless_line_is_one_error(void)
{
    trace.sent[0] = 0;
    for (int i = 0; i < 5000; i++)
        receive("z");
    fakeRun();
    CHECK_TEXT(sentLines(), "");
    CHECK_TEXT(askRaw("\n"), "-- err long");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 00");
}

static void torn_line_does_not_affect_the_next(void)
{
    receive("5a w 08");
    CHECK_TEXT(askRaw("\n"), "-- err line");
    CHECK_TEXT(ask("w 08 12"), "5a ok 08 12");
}

// -- Reset ------------------------------------------------------------------------------------------------------------

static void boot_writes_all_registers_once(void)
{
    fakeClear();
    fakePowerOn();
    CHECK(trace.isDriverEnabled);
    CHECK(trace.slave == 0x45);
    CHECK_TEXT(trace.bus, "");
    CHECK_TEXT(sentLines(), "ev boot 04");
    fakeTick();
    CHECK_TEXT(trace.bus, INIT_BYTES);
    fakeTicks(300);
    CHECK_TEXT(trace.bus, INIT_BYTES);
    CHECK_TEXT(sentLines(), "ev boot 04");
}

static void boot_reports_cause_and_missing_calibration(void)
{
    fakeClear();
    fake.resetCause = RESET_WATCHDOG | RESET_PIN;
    fake.isUncalibrated = true;
    fakePowerOn();
    CHECK_TEXT(sentLines(), "ev boot 09|ev err cal");
    CHECK_TEXT(ask("v"), "5a ok 1 09 00 00");
}

static void boot_without_driver_reports_nack(void)
{
    fakeClear();
    fake.nackAt = 0;
    fakePowerOn();
    fakeTick();
    CHECK_TEXT(sentLines(), "ev boot 04|ev err nack");
    CHECK_TEXT(trace.bus, "S 8a N P");
    fake.nackAt = -1;
    CHECK_TEXT(ask("i"), "5a ok");
    CHECK_TEXT(ask("v"), "5a ok 1 04 01 00");
}

// -- Commands ---------------------------------------------------------------------------------------------------------

static void write_sends_one_register(void)
{
    CHECK_TEXT(ask("w 08 5f"), "5a ok 08 5f");
    CHECK_TEXT(trace.bus, "S 8a 08 5f P");
}

static void write_reaches_every_register(void)
{
    for (unsigned target = 0; target < REGISTERS; target++) {
        char command[16];
        char bytes[32];
        snprintf(command, sizeof(command), "w %02x %02x", target, 0xe0 + target);
        snprintf(bytes, sizeof(bytes), "S 8a %02x %02x P", target, 0xe0 + target);
        fakeClearTraces();
        trace.slave = TCA6507_ADDRESS;
        ask(command);
        CHECK_TEXT(trace.bus, bytes);
    }
}

static void reserved_registers_are_never_written(void)
{
    for (unsigned target = REGISTERS; target < 256; target++) {
        char command[16];
        snprintf(command, sizeof(command), "w %02x 00", target);
        CHECK_TEXT(ask(command), "5a err reg");
        CHECK(!transmitCommand((uint8_t)target, 0));
    }
    CHECK_TEXT(trace.bus, "");
}

static void arguments_must_have_exact_digits(void)
{
    static const char *const wrong[] = {"w",        "w 08",      "w 08 ",     "w 8 00",       "w 08 0",
                                        "w 08 000", "w 08  00",  "w 08 00 ",  "w 08 00 00",   "w 08 0G",
                                        "w 08 FF",  "w 08,00",   "p 00 00",   "p 00 00 80",   "p 80 00 00",
                                        "p 00 ff 00", "p 00 00 00 00", "b 2 0 0 0 0 0", "b 0 0 0 0 0", "b 0 0 0 0 0 10",
                                        "b",        "l 0",       "l 000",     "l 00 00",      "v 1",
                                        "i 0",      "+0 1",      "t",         "t port",       "t ports ",
                                        "t counts", "t ports count", "v "};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_TEXT(ask(wrong[i]), "5a err arg");
    CHECK_TEXT(trace.bus, "");
}

static void unknown_commands_are_refused(void)
{
    static const char *const unknown[] = {"x",  "V",   "vv", "W 08 00", "w08 00", "+",     "+2",
                                          "-",  "-2",  "+00", "0",      "*",      " v",    "tports"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        CHECK_TEXT(ask(unknown[i]), "5a err cmd");
    CHECK_TEXT(trace.bus, "");
}

static void ports_write_all_registers(void)
{
    CHECK_TEXT(ask("p 0e 70 7e"), "5a ok");
    CHECK_TEXT(trace.bus, "S 8a 10 0e 70 7e 44 44 44 44 44 ff 0f 88 P");
}

static void init_restores_the_shadow(void)
{
    ask("p 02 04 7f");
    ask("w 03 21");
    ask("w 07 65");
    ask("w 08 3c");
    ask("w 09 c5");
    ask("w 0a 80"); // An action: the next initialisation restarts both banks.
    trace.bus[0] = 0;
    CHECK_TEXT(ask("i"), "5a ok");
    CHECK_TEXT(trace.bus, "S 8a 10 02 04 7f 21 44 44 44 65 3c c5 88 P");
}

static void levels_saturate_at_both_ends(void)
{
    CHECK_TEXT(ask("+0"), "5a ok f");
    CHECK_TEXT(trace.bus, "S 8a 08 ff P");
    for (int level = 14; level >= 0; level--) {
        char reply[16];
        snprintf(reply, sizeof(reply), "5a ok %x", level);
        CHECK_TEXT(ask("-0"), reply);
    }
    trace.bus[0] = 0;
    CHECK_TEXT(ask("-0"), "5a ok 0");
    CHECK_TEXT(trace.bus, "S 8a 08 f0 P");
    for (int level = 1; level <= 15; level++) {
        char reply[16];
        snprintf(reply, sizeof(reply), "5a ok %x", level);
        CHECK_TEXT(ask("+0"), reply);
    }
    CHECK_TEXT(ask("+0"), "5a ok f");
}

static void three_levels_are_independent(void)
{
    // All intermediate levels of the driver: PWM0, PWM1 and the master. No other exists for the seven outputs.
    ask("w 08 73");
    CHECK_TEXT(ask("+1"), "5a ok 8");
    CHECK_TEXT(ask("-0"), "5a ok 2");
    CHECK_TEXT(ask("m 9"), "5a ok");
    CHECK(shadowOf(REGISTER_INTENSITY) == 0x82);
    CHECK(shadowOf(REGISTER_MASTER) == 0x09);
    CHECK_TEXT(ask("-1"), "5a ok 7");
    CHECK_TEXT(ask("+0"), "5a ok 3");
    CHECK(shadowOf(REGISTER_INTENSITY) == 0x73);
    CHECK(shadowOf(REGISTER_MASTER) == 0x09);
}

static void master_level_keeps_one_shot_bits(void)
{
    ask("w 09 f0");
    trace.bus[0] = 0;
    CHECK_TEXT(ask("m a"), "5a ok");
    CHECK_TEXT(trace.bus, "S 8a 09 fa P");
}

static void wrong_master_level_is_refused(void)
{
    static const char *const wrong[] = {"m", "m g", "m 10", "m A", "m -1", "m 1 2", "m "};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_TEXT(ask(wrong[i]), "5a err level");
    CHECK_TEXT(trace.bus, "");
}

static void bank_times_change_one_nibble_and_restart_the_bank(void)
{
    CHECK_TEXT(ask("b 0 1 2 3 4 5"), "5a ok");
    CHECK_TEXT(trace.bus, "S 8a 13 41 42 43 44 45 ff 0f 08 P");
    trace.bus[0] = 0;
    CHECK_TEXT(ask("b 1 f e d c b"), "5a ok");
    CHECK_TEXT(trace.bus, "S 8a 13 f1 e2 d3 c4 b5 ff 0f 80 P");
    trace.bus[0] = 0;
    ask("i");
    CHECK_TEXT(trace.bus, "S 8a 10 00 00 00 f1 e2 d3 c4 b5 ff 0f 88 P");
}

static void light_is_read_in_three_digits(void)
{
    fake.light = 0x3ff;
    CHECK_TEXT(ask("l"), "5a ok 3ff");
    fake.light = 7;
    CHECK_TEXT(ask("l"), "5a ok 007");
    fake.isLightStuck = true;
    CHECK_TEXT(ask("l"), "5a err busy");
}

static void light_events_follow_their_period(void)
{
    fake.light = 0x2a5;
    CHECK_TEXT(ask("l 03"), "5a ok 03");
    trace.sent[0] = 0;
    fakeTicks(2);
    CHECK_TEXT(sentLines(), "");
    fakeTicks(4);
    CHECK_TEXT(sentLines(), "ev l 2a5|ev l 2a5");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 00");
    CHECK_TEXT(ask("l 00"), "5a ok 00");
    trace.sent[0] = 0;
    fakeTicks(600);
    CHECK_TEXT(sentLines(), "");
}

static void light_events_wait_for_a_pending_reply(void)
{
    ask("l 01");
    fake.startHangs = true;
    CHECK_TEXT(ask("w 08 11"), "");
    fakeTick();
    CHECK_TEXT(sentLines(), "");
    fake.startHangs = false;
    fakeTicks(3);
    CHECK(strncmp(sentLines(), "5a ok 08 11|ev l 000", 20) == 0);
}

// -- Tests of the thesis ----------------------------------------------------------------------------------------------

static void test_ports_walks_used_ports_and_ends(void)
{
    static const char *const walk[] = {"02", "04", "08", "10", "20", "40", "00"};
    CHECK_TEXT(ask("t ports"), "5a ok");
    CHECK_TEXT(trace.bus, "");
    for (size_t i = 0; i < sizeof(walk) / sizeof(walk[0]); i++) {
        char bytes[64];
        snprintf(bytes, sizeof(bytes), "S 8a 10 00 00 %s 44 44 44 44 44 ff 0f 88 P", walk[i]);
        trace.bus[0] = 0;
        fakeTick();
        CHECK_TEXT(trace.bus, bytes);
        fakeTicks(TEST_STEP_TICKS - 1);
        CHECK_TEXT(trace.bus, bytes);
    }
    trace.bus[0] = 0;
    fakeTicks(1000);
    CHECK_TEXT(trace.bus, "");
}

static void test_count_counts_without_end(void)
{
    CHECK_TEXT(ask("t count"), "5a ok");
    fakeTick();
    CHECK_TEXT(trace.bus, "S 8a 10 00 7e 00 44 44 44 44 44 ff 0f 88 P");
    for (unsigned count = 0; count < 100; count++) {
        char bytes[32];
        snprintf(bytes, sizeof(bytes), "S 8a 08 f%x P", count % 16);
        trace.bus[0] = 0;
        fakeTicks(TEST_STEP_TICKS);
        CHECK_TEXT(trace.bus, bytes);
    }
    CHECK_TEXT(sentLines(), "5a ok");
}

static void any_command_stops_a_test(void)
{
    static const char *const commands[] = {"v", "l", "w 08 00", "nonsense"};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        ask("t count");
        fakeTick();
        ask(commands[i]);
        trace.bus[0] = 0;
        fakeTicks(100);
        CHECK_TEXT(trace.bus, "");
    }
}

static void line_with_wrong_crc_does_not_stop_a_test(void)
{
    ask("t count");
    fakeTick();
    CHECK_TEXT(askRaw("5a v*0000\n"), "-- err crc");
    trace.bus[0] = 0;
    fakeTicks(TEST_STEP_TICKS);
    CHECK_TEXT(trace.bus, "S 8a 08 f0 P");
}

static void failed_step_ends_a_test_with_an_event(void)
{
    ask("t ports");
    fakeTick();
    fake.nackAt = 1;
    trace.sent[0] = 0;
    fakeTicks(3 * TEST_STEP_TICKS);
    CHECK_TEXT(sentLines(), "ev err nack");
}

static void a_test_can_follow_another(void)
{
    ask("t ports");
    fakeTicks(3);
    CHECK_TEXT(ask("t count"), "5a ok");
    trace.bus[0] = 0;
    fakeTick();
    CHECK_TEXT(trace.bus, "S 8a 10 00 7e 00 44 44 44 44 44 ff 0f 88 P");
}

// -- Faults of the bus ------------------------------------------------------------------------------------------------

static void nack_of_each_byte_ends_with_stop(void)
{
    for (int byte = 0; byte < 13; byte++) {
        restart();
        fake.nackAt = byte;
        CHECK_TEXT(ask("p 01 02 03"), "5a err nack");
        size_t length = strlen(trace.bus);
        CHECK(length > 4 && strcmp(trace.bus + length - 4, " N P") == 0);
        CHECK(shadowOf(REGISTER_SELECT0) == 0 && shadowOf(REGISTER_SELECT1) == 0 && shadowOf(REGISTER_SELECT2) == 0);
        fake.nackAt = -1;
        CHECK_TEXT(ask("v"), "5a ok 1 04 01 00");
        CHECK_TEXT(ask("w 08 11"), "5a ok 08 11");
    }
}

static void nack_keeps_the_level(void)
{
    ask("w 08 77");
    fake.nackAt = 2;
    CHECK_TEXT(ask("+0"), "5a err nack");
    fake.nackAt = -1;
    CHECK_TEXT(ask("+0"), "5a ok 8");
}

static void nack_counter_stays_at_255(void)
{
    fake.nackAt = 0;
    for (int i = 0; i < 300; i++)
        ask("w 00 00");
    CHECK_TEXT(ask("v"), "5a ok 1 04 ff 00");
}

static void held_sda_is_freed_by_clock_pulses(void)
{
    for (int pulses = 1; pulses <= 9; pulses++) {
        restart();
        fake.sdaHeldPulses = pulses;
        CHECK_TEXT(ask("w 08 5f"), "");
        fakeTicks(I2C_TICKS_MAX + 1);
        CHECK_TEXT(sentLines(), "5a ok 08 5f");
        CHECK_TEXT(trace.bus, "R S 8a 08 5f P");
        CHECK(trace.clockPulses == (unsigned)pulses + 1); // The last pulse is that of STOP.
        CHECK_TEXT(ask("v"), "5a ok 1 04 00 01");
    }
}

static void permanently_held_sda_is_an_error_within_its_bound(void)
{
    fake.sdaHeldPulses = -1;
    CHECK_TEXT(ask("w 08 5f"), "");
    fakeTicks(I2C_TICKS_MAX + 1);
    CHECK_TEXT(sentLines(), "5a err bus");
    CHECK(trace.clockPulses == 10);
    fake.sdaHeldPulses = 0;
    CHECK_TEXT(ask("w 08 5f"), "5a ok 08 5f");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 01");
}

static void held_scl_is_an_error_within_its_bound(void)
{
    fake.isSclHeld = true;
    CHECK_TEXT(ask("w 08 5f"), "");
    fakeTicks(I2C_TICKS_MAX + 1);
    CHECK_TEXT(sentLines(), "5a err bus");
    fake.isSclHeld = false;
    CHECK_TEXT(ask("i"), "5a ok");
}

static void hanging_controller_gets_two_attempts(void)
{
    fake.startHangs = true;
    CHECK_TEXT(ask("+0"), "");
    fakeTicks(I2C_TICKS_MAX + 1);
    CHECK_TEXT(sentLines(), "");
    fakeTicks(I2C_TICKS_MAX + 1);
    CHECK_TEXT(sentLines(), "5a err bus");
    fake.startHangs = false;
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 02");
    CHECK_TEXT(ask("+0"), "5a ok f");
}

static void hanging_stop_is_an_error_within_its_bound(void)
{
    fake.stopHangs = true;
    CHECK_TEXT(ask("w 08 12"), "");
    fakeTicks(2 * (I2C_TICKS_MAX + 1));
    CHECK_TEXT(sentLines(), "5a err bus");
    fake.stopHangs = false;
    CHECK_TEXT(ask("w 08 12"), "5a ok 08 12");
}

static void fault_without_command_is_an_event(void)
{
    fake.sdaHeldPulses = -1;
    ask("t ports");
    trace.sent[0] = 0;
    fakeTicks(10);
    CHECK_TEXT(sentLines(), "ev err bus");
}

static void bus_refuses_a_second_transfer(void)
{
    static const uint8_t ports[PORT_VALUES] = {0, 0, 0};
    static const uint8_t codes[TIME_CODES] = {0, 0, 0, 0, 0};
    static const uint8_t bytes[I2C_BYTES_MAX + 1] = {0};
    CHECK(!writeI2C(bytes, 0));
    CHECK(!writeI2C(bytes, I2C_BYTES_MAX + 1));
    fake.startHangs = true;
    CHECK(transmitCommand(0, 1));
    CHECK(isI2CBusy());
    CHECK(!writeI2C(bytes, 1));
    CHECK(!transmitCommand(0, 2));
    CHECK(!initTCA6507(ports));
    CHECK(!restoreTCA6507());
    CHECK(!setTimes(0, codes));
    CHECK(!setMasterLevel(1));
    // The refused calls have not replaced the bytes that the shadow copy receives.
    fake.startHangs = false;
    fakeTicks(I2C_TICKS_MAX + 1);
    CHECK_TEXT(trace.bus, "R S 8a 00 01 P");
    CHECK(shadowOf(REGISTER_SELECT0) == 0x01);
    CHECK(shadowOf(REGISTER_FADE_ON) == 0x44);
}

// -- Flow control -----------------------------------------------------------------------------------------------------

static void second_command_waits_and_third_is_refused(void)
{
    fake.startHangs = true;
    trace.sent[0] = 0;
    receive(withCrc("01 w 08 11"));
    fakeRun();
    receive(withCrc("02 w 08 22"));
    fakeRun();
    receive(withCrc("03 w 08 33"));
    fakeRun();
    CHECK_TEXT(sentLines(), "");
    fake.startHangs = false;
    fakeTicks(I2C_TICKS_MAX + 1);
    CHECK_TEXT(sentLines(), "01 ok 08 11|-- err busy|02 ok 08 22");
    CHECK_TEXT(trace.bus, "R S 8a 08 11 P S 8a 08 22 P");
    CHECK_TEXT(ask("v"), "5a ok 1 04 00 01");
}

static void line_that_begins_while_the_buffer_is_full_is_refused_whole(void)
{
    char line[32];
    fake.startHangs = true;
    trace.sent[0] = 0;
    receive(withCrc("01 w 08 11"));
    fakeRun();
    receive(withCrc("02 v"));
    snprintf(line, sizeof(line), "%s", withCrc("03 v"));
    fakeReceive(line, 3);
    fake.startHangs = false;
    fakeTicks(I2C_TICKS_MAX + 1);
    receive(line + 3);
    fakeRun();
    CHECK_TEXT(sentLines(), "01 ok 08 11|02 ok 1 04 00 01|-- err busy");
}

static void replies_wait_for_room_in_the_send_buffer(void)
{
    fake.isUartStalled = true;
    trace.sent[0] = 0;
    for (int i = 0; i < 4; i++) {
        receive(withCrc("5a v"));
        fakeRun();
    }
    fake.isUartStalled = false;
    fakeRun();
    CHECK_TEXT(sentLines(), "5a ok 1 04 00 00|5a ok 1 04 00 00|5a ok 1 04 00 00|-- err busy");
}

static void light_events_never_displace_a_reply(void)
{
    ask("l 01");
    fake.isUartStalled = true;
    trace.sent[0] = 0;
    fakeTicks(50);
    receive(withCrc("77 w 08 01"));
    fakeRun();
    fake.isUartStalled = false;
    fakeRun();
    const char *lines = sentLines();
    CHECK(strstr(lines, "77 ok 08 01") != NULL);
    CHECK(strlen(trace.sent) <= 64);
}

// -- Watchdog ---------------------------------------------------------------------------------------------------------

static void watchdog_is_fed_once_per_tick(void)
{
    fakeTicks(100);
    CHECK(trace.watchdogFeeds == 100);
    fakeRun();
    CHECK(trace.watchdogFeeds == 100);
}

static void watchdog_is_fed_during_bus_faults_and_tests(void)
{
    ask("t count");
    fakeTicks(100);
    fake.startHangs = true;
    fakeTicks(100);
    CHECK(trace.watchdogFeeds == 200);
}

static void watchdog_starves_without_ticks_or_with_a_stuck_transmitter(void)
{
    for (int i = 0; i < 1000; i++)
        fakeRun();
    CHECK(trace.watchdogFeeds == 0);
    fake.isUartStalled = true;
    receive(withCrc("5a v"));
    fakeRun();
    fakeTicks(10);
    CHECK(trace.watchdogFeeds == 1);
}

// -- Runner -----------------------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) {#name, name}
    TEST(crc_matches_the_check_value),
    TEST(crc_equals_eight_shifts_for_all_states),
    TEST(parser_reads_sequence_and_command),
    TEST(parser_refuses_what_is_not_a_request),
    TEST(upper_case_crc_is_refused),
    TEST(every_changed_bit_is_detected),
    TEST(wrong_crc_gets_an_unnumbered_error),
    TEST(carriage_return_before_line_feed_is_ignored),
    TEST(empty_lines_are_ignored),
    TEST(line_of_48_bytes_is_read_and_49_refused),
    TEST(endless_line_is_one_error),
    TEST(torn_line_does_not_affect_the_next),
    TEST(boot_writes_all_registers_once),
    TEST(boot_reports_cause_and_missing_calibration),
    TEST(boot_without_driver_reports_nack),
    TEST(write_sends_one_register),
    TEST(write_reaches_every_register),
    TEST(reserved_registers_are_never_written),
    TEST(arguments_must_have_exact_digits),
    TEST(unknown_commands_are_refused),
    TEST(ports_write_all_registers),
    TEST(init_restores_the_shadow),
    TEST(levels_saturate_at_both_ends),
    TEST(three_levels_are_independent),
    TEST(master_level_keeps_one_shot_bits),
    TEST(wrong_master_level_is_refused),
    TEST(bank_times_change_one_nibble_and_restart_the_bank),
    TEST(light_is_read_in_three_digits),
    TEST(light_events_follow_their_period),
    TEST(light_events_wait_for_a_pending_reply),
    TEST(test_ports_walks_used_ports_and_ends),
    TEST(test_count_counts_without_end),
    TEST(any_command_stops_a_test),
    TEST(line_with_wrong_crc_does_not_stop_a_test),
    TEST(failed_step_ends_a_test_with_an_event),
    TEST(a_test_can_follow_another),
    TEST(nack_of_each_byte_ends_with_stop),
    TEST(nack_keeps_the_level),
    TEST(nack_counter_stays_at_255),
    TEST(held_sda_is_freed_by_clock_pulses),
    TEST(permanently_held_sda_is_an_error_within_its_bound),
    TEST(held_scl_is_an_error_within_its_bound),
    TEST(hanging_controller_gets_two_attempts),
    TEST(hanging_stop_is_an_error_within_its_bound),
    TEST(fault_without_command_is_an_event),
    TEST(bus_refuses_a_second_transfer),
    TEST(second_command_waits_and_third_is_refused),
    TEST(line_that_begins_while_the_buffer_is_full_is_refused_whole),
    TEST(replies_wait_for_room_in_the_send_buffer),
    TEST(light_events_never_displace_a_reply),
    TEST(watchdog_is_fed_once_per_tick),
    TEST(watchdog_is_fed_during_bus_faults_and_tests),
    TEST(watchdog_starves_without_ticks_or_with_a_stuck_transmitter),
};

int main(int count, char **arguments)
{
    unsigned passed = 0;
    unsigned failed = 0;
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (count > 1 && strcmp(arguments[1], tests[i].name) != 0)
            continue;
        failures = 0;
        restart();
        tests[i].run();
        printf("%s %s\n", failures == 0 ? "ok    " : "FAILED", tests[i].name);
        if (failures == 0)
            passed++;
        else
            failed++;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0 || passed == 0;
}

// Runs the AVR firmware on simavr with a fake LED driver on the TWI bus and a host on the UART. It asserts the bytes of
// initialisation, commands, both tests, a NACK, and that the watchdog never resets the controller.
//
//   simavr-test led-module-avr.elf
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <avr_adc.h>
#include <avr_twi.h>
#include <avr_uart.h>
#include <sim_avr.h>
#include <sim_elf.h>

#include "../line.h"

enum { CLOCK_HZ = 16000000, BYTE_CYCLES = CLOCK_HZ / 960, TRACE_MAX = 8192 };

static avr_t *avr;
static avr_irq_t *driver;
static avr_irq_t *uartInput;

// `S` START, `N` NACK, `P` STOP, bytes in hex; as in host/fake.h.
static char bus[TRACE_MAX];
static char sent[TRACE_MAX];
static bool isSelected;
static int byteIndex;
static int nackAt = -1;

static unsigned passed;
static unsigned failed;

static void record(const char *mark)
{
    if (strlen(bus) + 4 < sizeof(bus)) {
        if (bus[0] != 0)
            strcat(bus, " ");
        strcat(bus, mark);
    }
}

static void recordByte(uint8_t byte)
{
    char text[3];
    snprintf(text, sizeof(text), "%02x", byte);
    record(text);
}

// Acknowledges a byte, or not.
static void answer(uint8_t address)
{
    bool isAcknowledged = byteIndex++ != nackAt;
    if (isAcknowledged)
        avr_raise_irq(driver + TWI_IRQ_INPUT, avr_twi_irq_msg(TWI_COND_ACK, address, 1));
    else
        record("N");
}

static void onBus(avr_irq_t *irq, uint32_t value, void *parameter)
{
    (void)irq;
    (void)parameter;
    avr_twi_msg_irq_t message;
    message.u.v = value;
    if ((message.u.twi.msg & TWI_COND_STOP) != 0) {
        record("P");
        isSelected = false;
    }
    if ((message.u.twi.msg & TWI_COND_START) != 0) {
        record("S");
        recordByte(message.u.twi.addr);
        byteIndex = 0;
        isSelected = message.u.twi.addr == 0x8a;
        if (isSelected)
            answer(message.u.twi.addr);
    }
    if (isSelected && (message.u.twi.msg & TWI_COND_WRITE) != 0) {
        recordByte(message.u.twi.data);
        answer(message.u.twi.addr);
    }
}

static void onSent(avr_irq_t *irq, uint32_t value, void *parameter)
{
    (void)irq;
    (void)parameter;
    size_t length = strlen(sent);
    if (length + 1 < sizeof(sent)) {
        sent[length] = (char)value;
        sent[length + 1] = 0;
    }
}

static void runCycles(uint64_t cycles)
{
    for (uint64_t end = avr->cycle + cycles; avr->cycle < end;) {
        int state = avr_run(avr);
        if (state == cpu_Done || state == cpu_Crashed) {
            fprintf(stderr, "the controller stopped in state %d at cycle %llu\n", state,
                    (unsigned long long)avr->cycle);
            exit(1);
        }
    }
}

static void runMs(unsigned ms)
{
    runCycles((uint64_t)ms * (CLOCK_HZ / 1000));
}

static void clearTraces(void)
{
    bus[0] = sent[0] = 0;
}

// Sends a request with sequence 5a at 9600 Bd, and waits until a line has come back or 200 ms have passed.
static void ask(const char *command)
{
    char line[64];
    char body[56];
    snprintf(body, sizeof(body), "5a %s", command);
    uint16_t crc = CRC_INITIAL;
    for (const char *at = body; *at != 0; at++)
        crc = crcOfByte(crc, (uint8_t)*at);
    snprintf(line, sizeof(line), "%s*%04x\n", body, crc);
    for (const char *at = line; *at != 0; at++) {
        avr_raise_irq(uartInput, (uint8_t)*at);
        runCycles(BYTE_CYCLES);
    }
    for (int ms = 0; ms < 200 && strchr(sent, '\n') == NULL; ms++)
        runMs(1);
}

static void check(const char *name, const char *actual, const char *expected, size_t length)
{
    if (strncmp(actual, expected, length) == 0) {
        passed++;
        printf("ok     %s\n", name);
        return;
    }
    failed++;
    printf("FAILED %s: expected \"%s\", got \"%s\"\n", name, expected, actual);
}

static void checkBus(const char *name, const char *expected)
{
    check(name, bus, expected, sizeof(bus));
}

// Compares the line without its CRC.
static void checkSent(const char *name, const char *expected)
{
    check(name, sent, expected, strlen(expected));
}

static void checkCommand(const char *command, const char *reply, const char *bytes)
{
    char name[80];
    clearTraces();
    ask(command);
    snprintf(name, sizeof(name), "reply_to_%s", command);
    checkSent(name, reply);
    snprintf(name, sizeof(name), "bus_bytes_of_%s", command);
    checkBus(name, bytes);
}

static void connect(const char *path)
{
    elf_firmware_t firmware;
    memset(&firmware, 0, sizeof(firmware));
    if (elf_read_firmware(path, &firmware) != 0) {
        fprintf(stderr, "%s: not an AVR firmware; build it with: make avr\n", path);
        exit(2);
    }
    avr = avr_make_mcu_by_name("atmega328p");
    if (avr == NULL) {
        fprintf(stderr, "simavr does not know the ATmega328P; install libsimavr-dev 1.6 or later\n");
        exit(2);
    }
    avr_init(avr);
    avr_load_firmware(avr, &firmware);
    avr->frequency = CLOCK_HZ;
    avr->vcc = avr->avcc = avr->aref = 5000;
    avr->log = LOG_ERROR;

    static const char *names[TWI_IRQ_COUNT] = {"8>driver.in", "32<driver.out", "8<driver.status"};
    driver = avr_alloc_irq(&avr->irq_pool, 0, TWI_IRQ_COUNT, names);
    avr_irq_register_notify(driver + TWI_IRQ_OUTPUT, onBus, NULL);
    avr_connect_irq(driver + TWI_IRQ_INPUT, avr_io_getirq(avr, AVR_IOCTL_TWI_GETIRQ(0), TWI_IRQ_INPUT));
    avr_connect_irq(avr_io_getirq(avr, AVR_IOCTL_TWI_GETIRQ(0), TWI_IRQ_OUTPUT), driver + TWI_IRQ_OUTPUT);

    uint32_t flags = 0;
    avr_ioctl(avr, AVR_IOCTL_UART_SET_FLAGS('0'), &flags);
    avr_irq_register_notify(avr_io_getirq(avr, AVR_IOCTL_UART_GETIRQ('0'), UART_IRQ_OUTPUT), onSent, NULL);
    uartInput = avr_io_getirq(avr, AVR_IOCTL_UART_GETIRQ('0'), UART_IRQ_INPUT);
    avr_raise_irq(avr_io_getirq(avr, AVR_IOCTL_ADC_GETIRQ, ADC_IRQ_ADC0), 2500);
}

static void testWalk(void)
{
    char expected[1024] = "";
    for (unsigned port = 0x02; port <= 0x80; port <<= 1) {
        char transfer[64];
        snprintf(transfer, sizeof(transfer), "%sS 8a 10 00 00 %02x 44 44 44 44 44 f6 09 88 P",
                 port == 0x02 ? "" : " ", port & 0x7f);
        strcat(expected, transfer);
    }
    clearTraces();
    ask("t ports");
    runMs(2000);
    checkBus("walk_lights_each_used_port", expected);
}

static void testCounting(void)
{
    char expected[1024] = "S 8a 10 00 7e 00 44 44 44 44 44 f6 09 88 P";
    for (unsigned step = 0; step < 20; step++) {
        char transfer[32];
        snprintf(transfer, sizeof(transfer), " S 8a 08 f%x P", (7 + step) & 0x0f);
        strcat(expected, transfer);
    }
    clearTraces();
    ask("t count");
    runMs(4050); // 21 steps of 200 ms: the first begins at once.
    size_t length = strlen(expected);
    check("count_increases_the_level_and_wraps", bus, expected, length);
    ask("v");
    clearTraces();
    runMs(500);
    checkBus("command_stops_the_count", "");
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: simavr-test led-module-avr.elf\n");
        return 2;
    }
    connect(arguments[1]);
    runMs(50);
    checkSent("boot_reports_power_on", "ev boot ");
    checkBus("boot_writes_all_registers", "S 8a 10 00 00 00 44 44 44 44 44 ff 0f 88 P");

    checkCommand("w 08 f5", "5a ok 08 f5*", "S 8a 08 f5 P");
    checkCommand("+0", "5a ok 6*", "S 8a 08 f6 P");
    checkCommand("m 9", "5a ok*", "S 8a 09 09 P");
    checkCommand("p 0e 70 7e", "5a ok*", "S 8a 10 0e 70 7e 44 44 44 44 44 f6 09 88 P");
    checkCommand("w 0b 00", "5a err reg*", "");
    checkCommand("b 1 4 4 4 4 4", "5a ok*", "S 8a 13 44 44 44 44 44 f6 09 80 P");
    // 2.5 V of 5 V: simavr computes 2500 * 1023 / 5000.
    checkCommand("l", "5a ok 1ff*", "");

    nackAt = 0;
    checkCommand("w 00 01", "5a err nack*", "S 8a N P");
    nackAt = 2;
    checkCommand("w 00 01", "5a err nack*", "S 8a 00 01 N P");
    nackAt = -1;
    testWalk();
    testCounting();
    checkCommand("v", "5a ok 1 04 02 00*", "");
    runMs(1000);
    check("watchdog_never_resets", sent, "5a ok 1 04 02 00*", 17);

    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}

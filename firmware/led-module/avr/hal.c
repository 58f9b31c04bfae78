// The ATmega328P at 16 MHz, the second controller: PD0 and PD1 are the UART, PD4 the driver's EN, PC0 (ADC0) the light
// sensor, PC4 and PC5 SDA and SCL. Quoted chapters are those of the data sheet, DS40002061.
#include "../hal.h"

#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>
#include <avr/wdt.h>
#include <util/delay.h>
#include <util/twi.h>

#include "../i2c.h"
#include "../module.h"
#include "../uart.h"

enum { PIN_ENABLE = 1 << PD4, PIN_SDA = 1 << PC4, PIN_SCL = 1 << PC5 };

enum {
    // 100 Hz = 16 MHz / 64 / 2500.
    TICK_COUNT = 2500,
    // 9600 Bd: 16 MHz / 16 / 104 ("USART0").
    UART_DIVIDER = 104,
    // 100 kHz = 16 MHz / (16 + 2 TWBR) ("2-wire Serial Interface").
    TWI_DIVIDER = (F_CPU / 100000 - 16) / 2,
    // A conversion takes 25 cycles of 125 kHz: 200 us. Each poll takes more than 0.3 us.
    LIGHT_POLLS_MAX = 2000,
};

// Set by every interrupt handler, cleared by halSleep: an event since the main loop's last pass.
static volatile bool hasEvent;

static uint8_t resetCause;
static uint8_t slaveAddress;

static void readResetCause(void)
{
    uint8_t flags = MCUSR;
    MCUSR = 0; // Otherwise a watchdog reset keeps the watchdog on at its shortest period ("System Control and Reset").
    resetCause = 0;
    if ((flags & (1 << WDRF)) != 0)
        resetCause |= RESET_WATCHDOG;
    if ((flags & (1 << PORF | 1 << BORF)) != 0)
        resetCause |= RESET_POWER_ON;
    if ((flags & (1 << EXTRF)) != 0)
        resetCause |= RESET_PIN;
}

void halInit(void)
{
    readResetCause();
    wdt_enable(WDTO_30MS);
    hasEvent = false;

    DDRD |= PIN_ENABLE;

    OCR1A = TICK_COUNT - 1;
    TCCR1A = 0;
    TCCR1B = 1 << WGM12 | 1 << CS11 | 1 << CS10;
    TIMSK1 = 1 << OCIE1A;

    UBRR0 = UART_DIVIDER - 1;
    UCSR0C = 1 << UCSZ01 | 1 << UCSZ00;
    UCSR0B = 1 << RXCIE0 | 1 << RXEN0 | 1 << TXEN0;

    ADMUX = 1 << REFS0;
    ADCSRA = 1 << ADEN | 1 << ADPS2 | 1 << ADPS1 | 1 << ADPS0;
    DIDR0 = 1 << ADC0D;
}

void halEnableInterrupts(void)
{
    sei();
}

bool halClockIsCalibrated(void)
{
    return true; // A crystal.
}

uint8_t halResetCause(void)
{
    return resetCause;
}

void halSleep(void)
{
    // The CPU executes the instruction after `sei` before an interrupt, so no handler can run before the sleep.
    cli();
    if (!hasEvent) {
        sleep_enable();
        sei();
        sleep_cpu();
        sleep_disable();
    }
    sei();
    hasEvent = false;
}

void halFeedWatchdog(void)
{
    wdt_reset();
}

void halEnableDriver(void)
{
    PORTD |= PIN_ENABLE;
}

void halI2cInit(uint8_t slave)
{
    slaveAddress = slave;
    DDRC &= (uint8_t)~(PIN_SDA | PIN_SCL);
    PORTC &= (uint8_t)~(PIN_SDA | PIN_SCL);
    TWCR = 0;
    TWSR = 0;
    TWBR = TWI_DIVIDER;
    TWCR = 1 << TWEN;
}

void halI2cStart(void)
{
    TWCR = 1 << TWINT | 1 << TWSTA | 1 << TWEN | 1 << TWIE;
}

void halI2cSend(uint8_t byte)
{
    TWDR = byte;
    TWCR = 1 << TWINT | 1 << TWEN | 1 << TWIE;
}

void halI2cStop(void)
{
    TWCR = 1 << TWINT | 1 << TWSTO | 1 << TWEN;
}

bool halI2cIsStopped(void)
{
    return (TWCR & (1 << TWSTO)) == 0;
}

void halI2cTakePins(void)
{
    TWCR = 0;
    halI2cDrive(0);
}

void halI2cDrive(uint8_t low)
{
    // PORTC is 0 for both pins: an output pulls to ground, an input releases.
    uint8_t direction = DDRC & (uint8_t)~(PIN_SDA | PIN_SCL);
    if ((low & I2C_SCL_LOW) != 0)
        direction |= PIN_SCL;
    if ((low & I2C_SDA_LOW) != 0)
        direction |= PIN_SDA;
    DDRC = direction;
    _delay_us(5);
}

bool halI2cSclIsHigh(void)
{
    return (PINC & PIN_SCL) != 0;
}

bool halI2cSdaIsHigh(void)
{
    return (PINC & PIN_SDA) != 0;
}

void halUartStart(void)
{
    UCSR0B |= 1 << UDRIE0;
}

bool halReadLight(uint16_t *value)
{
    ADCSRA |= 1 << ADSC;
    for (uint16_t polls = 0; polls < LIGHT_POLLS_MAX; polls++) {
        if ((ADCSRA & (1 << ADSC)) == 0) {
            *value = ADC;
            return true;
        }
    }
    return false;
}

ISR(TIMER1_COMPA_vect)
{
    hasEvent = true;
    tickInterrupt();
}

ISR(USART_RX_vect)
{
    hasEvent = true;
    bool isTorn = (UCSR0A & (1 << FE0)) != 0;
    uint8_t byte = UDR0;
    if (!isTorn) // As on the MSP430: the CRC shows the gap.
        uartReceiveInterrupt(byte);
}

ISR(USART_UDRE_vect)
{
    uint8_t byte;
    hasEvent = true;
    if (uartTakeByte(&byte))
        UDR0 = byte;
    else
        UCSR0B &= (uint8_t)~(1 << UDRIE0);
}

// Unlike USCI_B0, this controller leaves the address byte to the program and reports each step by a status code
// ("2-wire Serial Interface", "Transmission Modes").
ISR(TWI_vect)
{
    hasEvent = true;
    switch (TW_STATUS) {
    case TW_START:
        halI2cSend((uint8_t)(slaveAddress << 1));
        break;
    case TW_MT_SLA_ACK:
    case TW_MT_DATA_ACK:
        i2cTransmitInterrupt();
        break;
    case TW_MT_SLA_NACK:
    case TW_MT_DATA_NACK:
        i2cNackInterrupt();
        break;
    default:
        TWCR = 1 << TWEN; // Bus error or lost arbitration: the bound of the transfer starts the recovery.
        break;
    }
}

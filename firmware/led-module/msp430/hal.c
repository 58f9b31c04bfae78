// The MSP430G2553: SMCLK and MCLK run from the DCO at 1 MHz. P1.1 and P1.2 are the UART, P1.4 the light sensor, P1.5
// the driver's EN, P1.6 and P1.7 SCL and SDA.
#include "../hal.h"

#include "../i2c.h"
#include "../module.h"
#include "../uart.h"
#include "registers.h"

enum {
    PIN_RXD = 0x02,
    PIN_TXD = 0x04,
    PIN_BUTTON = 0x08,
    PIN_LIGHT = 0x10,
    PIN_ENABLE = 0x20,
    PIN_SCL = 0x40,
    PIN_SDA = 0x80,
};

enum {
    SMCLK_HZ = 1000000,
    TICK_CYCLES = SMCLK_HZ / 100,
    I2C_DIVIDER = SMCLK_HZ / 100000,
    // 1 MHz / 9600 Bd = 104.17: divider 104, modulation 1/8 (SLAU144, "USCI, UART Mode", "Typical Baud
    // Rates and Errors").
    UART_DIVIDER = 104,
    // A conversion takes 64 + 13 cycles of ADC10OSC (3.7 MHz or faster): 21 us. Each poll takes more than 5 us.
    LIGHT_POLLS_MAX = 32,
    ERASED = 0xff,
};

// Set by every interrupt handler, cleared by halSleep: an event since the main loop's last pass.
static volatile bool hasEvent;

static uint8_t resetCause;
static bool isCalibrated;

static void initClock(void)
{
    // Erased constants would select the DCO's fastest range, about 20 MHz (SLAS735, "DCO Frequency").
    isCalibrated = CALBC1_1MHZ != ERASED && CALDCO_1MHZ != ERASED;
    if (isCalibrated) {
        DCOCTL = 0; // Lowest step first, so that no intermediate setting is too fast (SLAU144, "Basic Clock Module+").
        BCSCTL1 = CALBC1_1MHZ;
        DCOCTL = CALDCO_1MHZ;
    }
    BCSCTL3 = LFXT1S_2; // ACLK from the VLO: the pins of the crystal are free.
}

// Unconnected pins are outputs, so that no input floats (SLAU144, "Digital I/O").
static void initPins(void)
{
    P1OUT = PIN_BUTTON;
    P1REN = PIN_BUTTON;
    P1DIR = 0x01 | PIN_ENABLE;
    P1SEL = PIN_RXD | PIN_TXD;
    P1SEL2 = PIN_RXD | PIN_TXD;
    P2SEL = 0;
    P2OUT = 0;
    P2DIR = 0xff;
    P3OUT = 0;
    P3DIR = 0xff;
}

static void initTick(void)
{
    TA0CCR0 = TICK_CYCLES - 1;
    TA0CCTL0 = CCIE;
    TA0CTL = TASSEL_2 | MC_1 | TACLR;
}

static void initUartController(void)
{
    UCA0CTL1 = UCSSEL_2 | UCSWRST;
    UCA0CTL0 = 0;
    UCA0BR0 = UART_DIVIDER;
    UCA0BR1 = 0;
    UCA0MCTL = UCBRS_1;
    UCA0CTL1 = UCSSEL_2;
    // UCRXEIE stays 0: the controller discards a byte with a framing error, and the CRC shows the gap.
    IE2 |= UCA0RXIE;
}

static void initLight(void)
{
    ADC10AE0 = PIN_LIGHT;
    ADC10CTL1 = INCH_4;
    ADC10CTL0 = ADC10SHT_3 | ADC10ON; // Longest sampling time: a light sensor has a high source resistance.
}

void halInit(void)
{
    halFeedWatchdog();
    resetCause = IFG1 & (WDTIFG | PORIFG | RSTIFG | NMIIFG);
    IFG1 = 0;
    hasEvent = false;
    initClock();
    initPins();
    initTick();
    initUartController();
    initLight();
}

void halEnableInterrupts(void)
{
    __asm__ volatile("nop\n\teint" ::: "memory");
}

bool halClockIsCalibrated(void)
{
    return isCalibrated;
}

uint8_t halResetCause(void)
{
    return resetCause;
}

void halSleep(void)
{
    // Interrupts are disabled between the check and the sleep. The instruction that sets CPUOFF also sets GIE, so a
    // handler cannot run in between and leave the CPU asleep. The handlers in crt0.S clear CPUOFF on their return.
    __asm__ volatile("dint\n\tnop" ::: "memory");
    if (hasEvent)
        __asm__ volatile("eint" ::: "memory");
    else
        __asm__ volatile("bis #0x18, r2\n\tnop" ::: "memory");
    hasEvent = false;
}

void halFeedWatchdog(void)
{
    WDTCTL = WDTPW | WDTCNTCL; // Watchdog mode, SMCLK / 32768.
}

void halEnableDriver(void)
{
    P1OUT |= PIN_ENABLE;
}

void halI2cInit(uint8_t slave)
{
    // The controller is configured in reset (SLAU144, "USCI, I2C Mode"). Reset clears its interrupt flags and enables.
    UCB0CTL1 = UCSSEL_2 | UCSWRST;
    UCB0CTL0 = UCMST | UCMODE_3 | UCSYNC;
    UCB0BR0 = I2C_DIVIDER;
    UCB0BR1 = 0;
    UCB0I2CSA = slave;
    P1SEL |= PIN_SCL | PIN_SDA;
    P1SEL2 |= PIN_SCL | PIN_SDA;
    UCB0CTL1 = UCSSEL_2;
    UCB0I2CIE = UCNACKIE;
    IE2 |= UCB0TXIE;
}

void halI2cStart(void)
{
    UCB0CTL1 = UCSSEL_2 | UCTR | UCTXSTT;
}

void halI2cSend(uint8_t byte)
{
    UCB0TXBUF = byte;
}

void halI2cStop(void)
{
    UCB0CTL1 = UCSSEL_2 | UCTR | UCTXSTP; // Without UCTXSTT: a START that is still set would be repeated.
    // The flag may stay set after a NACK (SLAZ440, USCI25), and stays set if the buffer is not written.
    IFG2 &= (uint8_t)~UCB0TXIFG;
}

bool halI2cIsStopped(void)
{
    return (UCB0CTL1 & UCTXSTP) == 0 && (UCB0STAT & UCBBUSY) == 0;
}

void halI2cTakePins(void)
{
    UCB0CTL1 = UCSSEL_2 | UCSWRST;
    P1DIR &= (uint8_t)~(PIN_SCL | PIN_SDA);
    P1OUT &= (uint8_t)~(PIN_SCL | PIN_SDA);
    P1SEL &= (uint8_t)~(PIN_SCL | PIN_SDA);
    P1SEL2 &= (uint8_t)~(PIN_SCL | PIN_SDA);
}

void halI2cDrive(uint8_t low)
{
    // P1OUT is 0 for both pins: an output pulls to ground, an input releases.
    uint8_t direction = P1DIR & (uint8_t)~(PIN_SCL | PIN_SDA);
    if ((low & I2C_SCL_LOW) != 0)
        direction |= PIN_SCL;
    if ((low & I2C_SDA_LOW) != 0)
        direction |= PIN_SDA;
    P1DIR = direction;
    // Half a bit of 100 kHz is 5 cycles. The instructions above and the return take more; the rise through 10 kohm
    // takes about 1 us.
    __asm__ volatile("nop\n\tnop\n\tnop\n\tnop\n\tnop");
}

bool halI2cSclIsHigh(void)
{
    return (P1IN & PIN_SCL) != 0;
}

bool halI2cSdaIsHigh(void)
{
    return (P1IN & PIN_SDA) != 0;
}

void halUartStart(void)
{
    IE2 |= UCA0TXIE;
}

bool halReadLight(uint16_t *value)
{
    ADC10CTL0 &= (uint16_t)~ADC10IFG;
    ADC10CTL0 |= ENC | ADC10SC;
    for (uint8_t polls = 0; polls < LIGHT_POLLS_MAX; polls++) {
        if ((ADC10CTL0 & ADC10IFG) != 0) {
            *value = ADC10MEM;
            return true;
        }
    }
    return false;
}

// The handlers below are called by crt0.S, which saves the registers and wakes the CPU.

void handleTick(void)
{
    hasEvent = true;
    tickInterrupt();
}

// One vector serves the transmit interrupts of both controllers (SLAU144, "USCI, I2C Mode").
void handleTransmit(void)
{
    hasEvent = true;
    if ((IFG2 & UCB0TXIFG) != 0 && (IE2 & UCB0TXIE) != 0)
        i2cTransmitInterrupt();
    if ((IFG2 & UCA0TXIFG) != 0 && (IE2 & UCA0TXIE) != 0) {
        uint8_t byte;
        if (uartTakeByte(&byte))
            UCA0TXBUF = byte;
        else
            IE2 &= (uint8_t)~UCA0TXIE;
    }
}

// This vector serves the received byte of the UART and the state changes of the I2C controller.
void handleReceive(void)
{
    hasEvent = true;
    if ((UCB0STAT & UCNACKIFG) != 0) {
        UCB0STAT &= (uint8_t)~UCNACKIFG;
        i2cNackInterrupt();
    }
    if ((IFG2 & UCA0RXIFG) != 0)
        uartReceiveInterrupt(UCA0RXBUF);
}

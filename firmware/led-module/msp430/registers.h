// registers.h: the registers and bits of the MSP430G2553 that this firmware uses.
//
// Debian has no compiler package with these definitions for clang. scripts/check-registers.sh compares each line with
// the manufacturer's header (package msp430mcu), so every definition is one plain number.
#ifndef REGISTERS_H
#define REGISTERS_H

#include <stdint.h>

#define REGISTER8(address) (*(volatile uint8_t *)(address))
#define REGISTER16(address) (*(volatile uint16_t *)(address))
#define CONSTANT8(address) (*(const volatile uint8_t *)(address))

// Special function registers (SLAS735, "Special Function Registers")
#define IE1 REGISTER8(0x0000)
#define IE2 REGISTER8(0x0001)
#define IFG1 REGISTER8(0x0002)
#define IFG2 REGISTER8(0x0003)
#define WDTIFG 0x01
#define PORIFG 0x04
#define RSTIFG 0x08
#define NMIIFG 0x10
#define UCA0RXIE 0x01
#define UCA0TXIE 0x02
#define UCB0TXIE 0x08
#define UCA0RXIFG 0x01
#define UCA0TXIFG 0x02
#define UCB0TXIFG 0x08

// Watchdog (SLAU144, "Watchdog Timer+")
#define WDTCTL REGISTER16(0x0120)
#define WDTPW 0x5a00
#define WDTCNTCL 0x0008

// Clocks (SLAU144, "Basic Clock Module+"), and the calibration constants in information segment A (SLAS735,
// "Calibration Data Stored in Information Memory Segment A")
#define DCOCTL REGISTER8(0x0056)
#define BCSCTL1 REGISTER8(0x0057)
#define BCSCTL3 REGISTER8(0x0053)
#define LFXT1S_2 0x20
#define CALDCO_1MHZ CONSTANT8(0x10fe)
#define CALBC1_1MHZ CONSTANT8(0x10ff)

// Ports (SLAU144, "Digital I/O")
#define P1IN REGISTER8(0x0020)
#define P1OUT REGISTER8(0x0021)
#define P1DIR REGISTER8(0x0022)
#define P1SEL REGISTER8(0x0026)
#define P1REN REGISTER8(0x0027)
#define P1SEL2 REGISTER8(0x0041)
#define P2OUT REGISTER8(0x0029)
#define P2DIR REGISTER8(0x002a)
#define P2SEL REGISTER8(0x002e)
#define P3OUT REGISTER8(0x0019)
#define P3DIR REGISTER8(0x001a)

// Timer_A0 (SLAU144, "Timer_A")
#define TA0CTL REGISTER16(0x0160)
#define TA0CCTL0 REGISTER16(0x0162)
#define TA0CCR0 REGISTER16(0x0172)
#define TASSEL_2 0x0200
#define MC_1 0x0010
#define TACLR 0x0004
#define CCIE 0x0010

// USCI_A0 as UART (SLAU144, "USCI, UART Mode")
#define UCA0CTL0 REGISTER8(0x0060)
#define UCA0CTL1 REGISTER8(0x0061)
#define UCA0BR0 REGISTER8(0x0062)
#define UCA0BR1 REGISTER8(0x0063)
#define UCA0MCTL REGISTER8(0x0064)
#define UCA0RXBUF REGISTER8(0x0066)
#define UCA0TXBUF REGISTER8(0x0067)
#define UCBRS_1 0x02

// USCI_B0 as I2C master (SLAU144, "USCI, I2C Mode")
#define UCB0CTL0 REGISTER8(0x0068)
#define UCB0CTL1 REGISTER8(0x0069)
#define UCB0BR0 REGISTER8(0x006a)
#define UCB0BR1 REGISTER8(0x006b)
#define UCB0I2CIE REGISTER8(0x006c)
#define UCB0STAT REGISTER8(0x006d)
#define UCB0TXBUF REGISTER8(0x006f)
#define UCB0I2CSA REGISTER16(0x011a)
#define UCMST 0x08
#define UCMODE_3 0x06
#define UCSYNC 0x01
#define UCSSEL_2 0x80
#define UCTR 0x10
#define UCTXSTP 0x04
#define UCTXSTT 0x02
#define UCSWRST 0x01
#define UCNACKIE 0x08
#define UCBBUSY 0x10
#define UCNACKIFG 0x08

// ADC10 (SLAU144, "ADC10")
#define ADC10AE0 REGISTER8(0x004a)
#define ADC10CTL0 REGISTER16(0x01b0)
#define ADC10CTL1 REGISTER16(0x01b2)
#define ADC10MEM REGISTER16(0x01b4)
#define ADC10SC 0x0001
#define ENC 0x0002
#define ADC10IFG 0x0004
#define ADC10ON 0x0010
#define ADC10SHT_3 0x1800
#define INCH_4 0x4000

#endif

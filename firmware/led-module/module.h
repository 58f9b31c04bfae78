// module.h: the parts of the firmware together: one initialisation and one pass of the main loop.
#ifndef MODULE_H
#define MODULE_H

#include <stdbool.h>
#include <stdint.h>

// Returns the number of ticks of 10 ms, modulo 256.
uint8_t tickNow(void);

// Starts the hardware and all parts, and enables the interrupts.
void initModule(void);

// Makes one pass of the main loop. Returns true if the CPU may sleep until the next interrupt.
bool pollModule(void);

// For the timer's interrupt handler of the HAL.
void tickInterrupt(void);

#endif

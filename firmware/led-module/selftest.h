// selftest.h: the two tests of the thesis. They run in steps on the tick, so that the main loop, the watchdog and the
// command line continue.
#ifndef SELFTEST_H
#define SELFTEST_H

#include <stdint.h>

// Ticks of 10 ms between two steps.
enum { TEST_STEP_TICKS = 20 };

// Starts a walk over the used ports: each is fully on for one step, then all are off and the test ends.
void testPorts(void);

// Starts an endless count of the brightness: all used ports show PWM0, whose level increases by one per step and
// starts at 0 after 15.
void testCount(void);

void stopTest(void);

// Makes the next step if its time has come. Call it once per tick while the bus is idle.
void pollTest(void);

#endif

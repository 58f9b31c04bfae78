#include "selftest.h"

#include "tca6507.h"

typedef enum { NO_TEST, PORTS, COUNT } Test;

static Test test;
static uint8_t step;
static uint8_t ticksLeft;

static void startTest(Test which)
{
    test = which;
    step = 0;
    ticksLeft = 1;
}

void testPorts(void)
{
    startTest(PORTS);
}

void testCount(void)
{
    startTest(COUNT);
}

void stopTest(void)
{
    test = NO_TEST;
}

// State 4 of an output, fully on, has only its bit of SELECT2; state 0, off, has none (SCPS164, section 8.6.1).
static void walkPorts(void)
{
    uint8_t portValues[PORT_VALUES] = {0, 0, 0};
    uint8_t port = (uint8_t)(2 << step);
    if ((port & USED_PORTS) != 0)
        portValues[REGISTER_SELECT2] = port;
    else
        stopTest();
    initTCA6507(portValues);
}

// State 2 of an output, PWM0, has only its bit of SELECT1.
static void countBrightness(void)
{
    static const uint8_t portValues[PORT_VALUES] = {0, USED_PORTS, 0};
    if (step == 0)
        initTCA6507(portValues);
    else if ((shadowOf(REGISTER_INTENSITY) & LEVEL_MAX) == LEVEL_MAX)
        setLevel(0, 0);
    else
        incrementPWM0();
}

void pollTest(void)
{
    if (test == NO_TEST || --ticksLeft != 0)
        return;
    ticksLeft = TEST_STEP_TICKS;
    if (test == PORTS)
        walkPorts();
    else
        countBrightness();
    // The walk ends at step 6; the count only distinguishes its first step.
    if (step < 7)
        step++;
}

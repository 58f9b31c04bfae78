#include "module.h"

#include "command.h"
#include "hal.h"
#include "i2c.h"
#include "light.h"
#include "selftest.h"
#include "tca6507.h"
#include "uart.h"

// Written by the timer's interrupt. One byte, so that a read is atomic.
static volatile uint8_t ticks;

// Only for the main loop.
static uint8_t tickBefore;
static bool isDriverReady;

uint8_t tickNow(void)
{
    return ticks;
}

void tickInterrupt(void)
{
    ticks++;
}

void initModule(void)
{
    ticks = tickBefore = 0;
    isDriverReady = false;
    halInit();
    halEnableDriver();
    initUart();
    initI2C(TCA6507_ADDRESS);
    resetShadow();
    stopTest();
    setLightPeriod(0);
    halEnableInterrupts();
    initCommand();
}

static void pollTick(void)
{
    uint8_t now = tickNow();
    if (now == tickBefore)
        return;
    tickBefore = now;
    pollLight();
    if (!isI2CBusy()) {
        // The first tick writes the registers: the driver needs time after EN has risen.
        if (!isDriverReady)
            isDriverReady = restoreTCA6507();
        else
            pollTest();
    }
    // All parts have made progress if this line is reached: the tick counts, each poll function returned, and the
    // UART sends. A transfer on the bus has its own bound in pollI2C.
    if (pollUart())
        halFeedWatchdog();
}

bool pollModule(void)
{
    pollCommand(pollI2C());
    pollTick();
    return !isI2CStopping();
}

#include "light.h"

#include "command.h"
#include "hal.h"
#include "message.h"
#include "uart.h"

static uint8_t lightPeriod;
static uint8_t ticksLeft;

void setLightPeriod(uint8_t period)
{
    lightPeriod = period;
    ticksLeft = period;
}

void pollLight(void)
{
    uint16_t value;
    if (lightPeriod == 0)
        return;
    if (ticksLeft != 0)
        ticksLeft--;
    if (ticksLeft != 0 || isReplyPending())
        return;
    ticksLeft = lightPeriod;
    if (!hasRoom(2 * MESSAGE_BYTES_MAX) || !halReadLight(&value))
        return;
    startMessage("ev l");
    addHex(value, 3);
    sendMessage();
}

// light.h: periodic events of the light sensor.
#ifndef LIGHT_H
#define LIGHT_H

#include <stdint.h>

// Sends an event every `period` ticks of 10 ms from now on; 0 stops them.
void setLightPeriod(uint8_t period);

// Sends the event that is due. Call it once per tick. While a reply waits for the bus, the event waits for the reply.
// An event that does not fit into the send buffer is dropped: it would be stale later, and a reply must always fit.
void pollLight(void);

#endif

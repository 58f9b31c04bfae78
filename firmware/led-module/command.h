// command.h: executes the lines of the host and sends replies and events.
#ifndef COMMAND_H
#define COMMAND_H

#include "i2c.h"

// Sends the events of a reset: its cause, and CODE_CAL if the clock is not calibrated.
void initCommand(void);

// Completes the command that waits for the bus, or reports the failure of a transfer without a command, and executes
// the next line if the bus is idle and its reply fits.
void pollCommand(Transfer transfer);

// Returns true while a reply waits for the end of its transfer; the message buffer is then in use.
bool isReplyPending(void);

#endif

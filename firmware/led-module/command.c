#include "command.h"

#include "hal.h"
#include "light.h"
#include "message.h"
#include "selftest.h"
#include "tca6507.h"
#include "uart.h"

enum { PROTOCOL_VERSION = 1, ARGUMENTS_MAX = 1 + TIME_CODES };

// The sequence of the last request. While the reply waits for the bus, its values are complete in the message buffer,
// and only an error can replace them.
static uint8_t sequence;
static bool isPending;

// The failure of a transfer that no command started. Its event waits for room in the send buffer.
static Code eventCode;

// The arguments of the command under execution.
static uint8_t arguments[ARGUMENTS_MAX];

static void sendError(Code code)
{
    addError(code);
    sendMessage();
}

static void sendErrorEvent(Code code)
{
    startMessage("ev");
    sendError(code);
}

static void sendUnnumberedError(Code code)
{
    startMessage("--");
    sendError(code);
}

void initCommand(void)
{
    isPending = false;
    eventCode = CODE_NONE;
    startMessage("ev boot");
    addHex(halResetCause(), 2);
    sendMessage();
    if (!halClockIsCalibrated())
        sendErrorEvent(CODE_CAL);
}

// The functions below execute one command each, with `arguments`. They append the values of the reply. If they start a
// transfer, the reply waits for its end.

static Code executeVersion(void)
{
    addHex(PROTOCOL_VERSION, 1);
    addHex(halResetCause(), 2);
    addHex(nackCount(), 2);
    addHex(recoveryCount(), 2);
    return CODE_NONE;
}

static Code executeInit(void)
{
    restoreTCA6507();
    return CODE_NONE;
}

static Code executeWrite(void)
{
    if (arguments[0] >= REGISTERS)
        return CODE_REG;
    transmitCommand(arguments[0], arguments[1]);
    addHex(arguments[0], 2);
    addHex(arguments[1], 2);
    return CODE_NONE;
}

static Code executePorts(void)
{
    if (((arguments[0] | arguments[1] | arguments[2]) & 0x80) != 0)
        return CODE_ARG;
    initTCA6507(arguments);
    return CODE_NONE;
}

static Code replyLevel(uint8_t level)
{
    addHex(level, 1);
    return CODE_NONE;
}

static Code executeIncrement0(void)
{
    return replyLevel(incrementPWM0());
}

static Code executeIncrement1(void)
{
    return replyLevel(incrementPWM1());
}

static Code executeDecrement0(void)
{
    return replyLevel(decrementPWM0());
}

static Code executeDecrement1(void)
{
    return replyLevel(decrementPWM1());
}

static Code executeMaster(void)
{
    setMasterLevel(arguments[0]);
    return CODE_NONE;
}

static Code executeBank(void)
{
    if (arguments[0] > 1)
        return CODE_ARG;
    setTimes(arguments[0], arguments + 1);
    return CODE_NONE;
}

static Code executeLight(void)
{
    uint16_t value;
    if (!halReadLight(&value))
        return CODE_BUSY;
    addHex(value, 3);
    return CODE_NONE;
}

static Code executeLightPeriod(void)
{
    setLightPeriod(arguments[0]);
    addHex(arguments[0], 2);
    return CODE_NONE;
}

static Code executeTestPorts(void)
{
    testPorts();
    return CODE_NONE;
}

static Code executeTestCount(void)
{
    testCount();
    return CODE_NONE;
}

static Code refuse(void)
{
    return CODE_ARG;
}

typedef struct {
    const char *name;
    uint8_t count;     // Number of arguments.
    uint8_t digits;    // Hex digits of each argument.
    uint8_t wrongCode; // Code of the reply if the arguments differ from `count` and `digits`.
    Code (*execute)(void);
} Command;

// A command with two forms has two rows.
static const Command commands[] = {
    {"v", 0, 0, CODE_ARG, executeVersion},
    {"i", 0, 0, CODE_ARG, executeInit},
    {"w", 2, 2, CODE_ARG, executeWrite},
    {"p", PORT_VALUES, 2, CODE_ARG, executePorts},
    {"+0", 0, 0, CODE_ARG, executeIncrement0},
    {"+1", 0, 0, CODE_ARG, executeIncrement1},
    {"-0", 0, 0, CODE_ARG, executeDecrement0},
    {"-1", 0, 0, CODE_ARG, executeDecrement1},
    {"m", 1, 1, CODE_LEVEL, executeMaster},
    {"b", 1 + TIME_CODES, 1, CODE_ARG, executeBank},
    {"l", 0, 0, CODE_ARG, executeLight},
    {"l", 1, 2, CODE_ARG, executeLightPeriod},
    {"t ports", 0, 0, CODE_ARG, executeTestPorts},
    {"t count", 0, 0, CODE_ARG, executeTestCount},
    {"t", 0, 0, CODE_ARG, refuse},
};

static Code execute(Request *request)
{
    const uint8_t *start = request->at;
    Code code = CODE_CMD;
    for (const Command *command = commands; command != commands + sizeof(commands) / sizeof(*commands); command++) {
        request->at = start;
        if (!takeName(request, command->name))
            continue;
        if (takeArguments(request, command->count, command->digits, arguments))
            return command->execute();
        code = command->wrongCode;
    }
    return code;
}

static void sendReply(Code code)
{
    if (code == CODE_NONE) {
        sendMessage();
        return;
    }
    startReply(sequence);
    sendError(code);
}

static void executeLine(const uint8_t *line, uint8_t length)
{
    Request request;
    Code code = parseRequest(line, length, &request);
    if (code != CODE_NONE) {
        sendUnnumberedError(code);
        return;
    }
    stopTest();
    sequence = request.sequence;
    startReply(sequence);
    addText(" ok");
    code = execute(&request);
    isPending = isI2CBusy();
    if (!isPending)
        sendReply(code);
}

static void completeTransfer(Transfer transfer)
{
    Code code = CODE_NONE;
    if (transfer == TRANSFER_DONE)
        acceptTransfer();
    else
        code = transfer == TRANSFER_NACKED ? CODE_NACK : CODE_BUS;
    if (isPending) {
        isPending = false;
        sendReply(code);
    } else if (code != CODE_NONE) {
        stopTest(); // A test cannot show anything on a driver that does not answer.
        eventCode = code;
    }
}

static void reportErrors(void)
{
    if (!hasRoom(2 * MESSAGE_BYTES_MAX))
        return;
    if (eventCode != CODE_NONE) {
        sendErrorEvent(eventCode);
        eventCode = CODE_NONE;
        return;
    }
    Code code = takeReceiveError();
    if (code != CODE_NONE)
        sendUnnumberedError(code);
}

void pollCommand(Transfer transfer)
{
    if (transfer == TRANSFER_BUSY)
        return;
    if (transfer != TRANSFER_NONE)
        completeTransfer(transfer);
    reportErrors();
    uint8_t length;
    const uint8_t *line = receivedLine(&length);
    if (line == 0 || !hasRoom(MESSAGE_BYTES_MAX))
        return;
    executeLine(line, length);
    releaseLine();
}

bool isReplyPending(void)
{
    return isPending;
}

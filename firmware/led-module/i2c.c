#include "i2c.h"

#include "hal.h"
#include "module.h"

// Clock pulses after which a slave that sends a byte has released SDA: eight bits and the acknowledge bit (UM10204,
// section 3.1.16).
enum { RECOVERY_PULSES = 9 };
enum { ATTEMPTS_MAX = 2 };

typedef enum { IDLE, SENDING, STOPPING } Phase;

// Shared between the interrupts and the main loop. The main loop writes them only in IDLE, when no interrupt of the
// controller can occur, or after halI2cTakePins has reset the controller.
static volatile uint8_t phase;
static volatile uint8_t position;
static volatile bool isNacked;

// Written by the main loop in IDLE; the interrupt only reads them.
static uint8_t bytesToWrite[I2C_BYTES_MAX];
static uint8_t bytesCount;

// Only for the main loop.
static uint8_t slaveAddress;
static uint8_t attempts;
static uint8_t startTick;
static uint8_t nacks;
static uint8_t recoveries;

static void increase(uint8_t *count)
{
    if (*count != 0xff)
        ++*count;
}

void initI2C(uint8_t slave)
{
    slaveAddress = slave;
    phase = IDLE;
    nacks = recoveries = 0;
    halI2cInit(slave);
}

static void start(void)
{
    position = 0;
    isNacked = false;
    startTick = tickNow();
    phase = SENDING;
    orderAccesses(); // The interrupt sees the bytes: it can occur from here on.
    halI2cStart();
}

bool writeI2C(const uint8_t *bytesArray, uint8_t count)
{
    if (phase != IDLE || count == 0 || count > I2C_BYTES_MAX)
        return false;
    for (uint8_t i = 0; i < count; i++)
        bytesToWrite[i] = bytesArray[i];
    bytesCount = count;
    attempts = 1;
    start();
    return true;
}

void i2cTransmitInterrupt(void)
{
    if (position < bytesCount) {
        halI2cSend(bytesToWrite[position++]);
        return;
    }
    phase = STOPPING;
    halI2cStop();
}

void i2cNackInterrupt(void)
{
    isNacked = true;
    // A NACK of the last byte arrives when STOP is already requested. A second request would follow the STOP, and would
    // lock the bus.
    if (phase != SENDING)
        return;
    phase = STOPPING;
    halI2cStop();
}

// Makes a slave release the bus: it clocks out the byte that the slave sends, then sends STOP. Takes at most 25 half
// bits. Returns true if both lines are high afterwards.
static bool recoverBus(void)
{
    increase(&recoveries);
    halI2cTakePins();
    for (uint8_t pulse = 0; pulse < RECOVERY_PULSES && !halI2cSdaIsHigh(); pulse++) {
        halI2cDrive(I2C_SCL_LOW);
        halI2cDrive(0);
    }
    halI2cDrive(I2C_SCL_LOW);
    halI2cDrive(I2C_SCL_LOW | I2C_SDA_LOW);
    halI2cDrive(I2C_SDA_LOW);
    halI2cDrive(0);
    bool isFree = halI2cSdaIsHigh() && halI2cSclIsHigh();
    phase = IDLE;
    halI2cInit(slaveAddress);
    return isFree;
}

Transfer pollI2C(void)
{
    if (phase == IDLE)
        return TRANSFER_NONE;
    if (phase == STOPPING && halI2cIsStopped()) {
        phase = IDLE;
        if (!isNacked)
            return TRANSFER_DONE;
        increase(&nacks);
        return TRANSFER_NACKED;
    }
    if ((uint8_t)(tickNow() - startTick) <= I2C_TICKS_MAX)
        return TRANSFER_BUSY;
    if (!recoverBus() || attempts == ATTEMPTS_MAX)
        return TRANSFER_FAILED;
    attempts++;
    start();
    return TRANSFER_BUSY;
}

bool isI2CBusy(void)
{
    return phase != IDLE;
}

bool isI2CStopping(void)
{
    return phase == STOPPING;
}

uint8_t nackCount(void)
{
    return nacks;
}

uint8_t recoveryCount(void)
{
    return recoveries;
}

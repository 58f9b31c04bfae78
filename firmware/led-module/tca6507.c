#include "tca6507.h"

#include "i2c.h"

// Bit 4 of the command byte: the register number increases after each byte (SCPS164, section 8.5.5).
enum { AUTO_INCREMENT = 0x10, REGISTER_MASK = 0x0f };

// Register 0x0A restarts the cycle of a bank: 8 in the low nibble for BANK0, 8 in the high nibble for BANK1. The Linux
// driver leds-tca6507.c writes the same code. Both banks start together, so that two blinking LEDs stay in phase.
enum { RESTART_BANK0 = 0x08, RESTART_BANK1 = 0x80, RESTART_BOTH = RESTART_BANK0 | RESTART_BANK1 };

// Values after a reset of the driver (SCPS164, section 8.6), except for register 0x0A. That register is an action and
// not a state; the shadow copy always holds a restart of both banks.
static const uint8_t resetValues[REGISTERS] = {0x00, 0x00, 0x00, 0x44, 0x44,        0x44,
                                               0x44, 0x44, 0xff, 0x0f, RESTART_BOTH};

static uint8_t shadow[REGISTERS];

// The last transfer: command byte and data. acceptTransfer copies it into the shadow.
static uint8_t transfer[1 + REGISTERS];
static uint8_t transferCount;

void resetShadow(void)
{
    for (uint8_t i = 0; i < REGISTERS; i++)
        shadow[i] = resetValues[i];
    transferCount = 0;
}

static bool send(uint8_t count)
{
    transferCount = count;
    return writeI2C(transfer, count);
}

bool initTCA6507(const uint8_t portValues[PORT_VALUES])
{
    if (isI2CBusy())
        return false;
    transfer[0] = AUTO_INCREMENT | REGISTER_SELECT0;
    for (uint8_t i = 0; i < REGISTERS; i++)
        transfer[1 + i] = i < PORT_VALUES ? portValues[i] : shadow[i];
    return send(1 + REGISTERS);
}

bool restoreTCA6507(void)
{
    return initTCA6507(shadow);
}

bool transmitCommand(uint8_t registerAddress, uint8_t value)
{
    if (registerAddress >= REGISTERS || isI2CBusy())
        return false;
    transfer[0] = registerAddress;
    transfer[1] = value;
    return send(2);
}

// BANK0 has the low nibble of a register, BANK1 the high nibble.
static uint8_t nibbleOf(uint8_t value, uint8_t bank)
{
    return bank == 0 ? value & 0x0f : value >> 4;
}

static uint8_t withNibble(uint8_t value, uint8_t bank, uint8_t nibble)
{
    return (uint8_t)(bank == 0 ? (value & 0xf0) | nibble : (value & 0x0f) | nibble << 4);
}

bool setLevel(uint8_t bank, uint8_t level)
{
    return transmitCommand(REGISTER_INTENSITY, withNibble(shadow[REGISTER_INTENSITY], bank, level));
}

// Writes the level also if it is already at its end: the write then still shows whether the driver answers.
static uint8_t changeLevel(uint8_t bank, bool isUp)
{
    uint8_t level = nibbleOf(shadow[REGISTER_INTENSITY], bank);
    if (isUp && level < LEVEL_MAX)
        level++;
    else if (!isUp && level > 0)
        level--;
    setLevel(bank, level);
    return level;
}

uint8_t incrementPWM0(void)
{
    return changeLevel(0, true);
}

uint8_t incrementPWM1(void)
{
    return changeLevel(1, true);
}

uint8_t decrementPWM0(void)
{
    return changeLevel(0, false);
}

uint8_t decrementPWM1(void)
{
    return changeLevel(1, false);
}

bool setMasterLevel(uint8_t level)
{
    return transmitCommand(REGISTER_MASTER, withNibble(shadow[REGISTER_MASTER], 0, level));
}

bool setTimes(uint8_t bank, const uint8_t codes[TIME_CODES])
{
    if (isI2CBusy())
        return false;
    // One transfer from 0x03 to 0x0A: the times and the restart arrive together, so that no cycle mixes old and new
    // times. Registers 0x08 and 0x09 lie between them and keep their values.
    transfer[0] = AUTO_INCREMENT | REGISTER_FADE_ON;
    for (uint8_t i = 0; i < TIME_CODES; i++)
        transfer[1 + i] = withNibble(shadow[REGISTER_FADE_ON + i], bank, codes[i]);
    transfer[6] = shadow[REGISTER_INTENSITY];
    transfer[7] = shadow[REGISTER_MASTER];
    transfer[8] = bank == 0 ? RESTART_BANK0 : RESTART_BANK1;
    return send(9);
}

uint8_t shadowOf(uint8_t registerAddress)
{
    return shadow[registerAddress];
}

void acceptTransfer(void)
{
    uint8_t target = transfer[0] & REGISTER_MASK;
    for (uint8_t i = 1; i < transferCount; i++, target++)
        if (target < REGISTER_INITIALIZATION)
            shadow[target] = transfer[i];
}

#include "hal.h"
#include "module.h"

int main(void)
{
    initModule();
    for (;;)
        if (pollModule())
            halSleep();
}

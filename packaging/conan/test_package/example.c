#include <auspex.h>
#include <stdio.h>

int main(void) {
    printf("auspex %s\n", auspex_version_string());
    return auspex_abi_version() == AUSPEX_ABI_VERSION ? 0 : 1;
}

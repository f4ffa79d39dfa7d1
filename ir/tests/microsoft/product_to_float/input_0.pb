Binput_0JE39%
T
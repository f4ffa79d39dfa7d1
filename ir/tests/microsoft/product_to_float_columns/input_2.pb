Binput_2J
ף<
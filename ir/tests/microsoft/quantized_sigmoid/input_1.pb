Binput_1J
ף<
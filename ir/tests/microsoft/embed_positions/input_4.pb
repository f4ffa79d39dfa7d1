Binput_4J Ÿ¹Ä?r¯Z?Lx¿¼îU¾q˜^¿?f®¾‰¼
¿ˆš„¾
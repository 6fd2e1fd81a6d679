"""One JSON codec per shared type; `doppler.core.serialize` is the door to all of them."""

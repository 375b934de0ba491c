package cuda

// PackingBytes is the packing memory of a lane, which tests make small.
var PackingBytes = &packingBytes

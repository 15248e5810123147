//! Tables of 8-bit floats: all 256 numbers of each type (OCP 8-bit Floating Point Specification, revision 1.0).

/// E4M3: four exponent bits, three fraction bits. There is no infinity; only the largest bit pattern is NaN.
pub(super) static E4M3: [f64; 256] = Float8 { fraction: 3, bias: 7, infinity: None, nan: 0x7f }.numbers();

/// E5M2: five exponent bits, two fraction bits; infinity and NaN as in IEEE 754.
pub(super) static E5M2: [f64; 256] =
    Float8 { fraction: 2, bias: 15, infinity: Some(0x7c), nan: 0x7d }.numbers();

struct Float8 {
    /// Number of fraction bits.
    fraction: u32,
    bias: i32,
    /// Bit pattern of infinity, without the sign.
    infinity: Option<u8>,
    /// Smallest bit pattern of NaN, without the sign.
    nan: u8,
}

impl Float8 {
    /// Returns the number of each bit pattern.
    const fn numbers(&self) -> [f64; 256] {
        let mut all = [0.0; 256];
        let mut bits = 0;
        while bits < 128 {
            all[bits] = self.size(bits as u8);
            all[bits + 128] = -all[bits];
            bits += 1;
        }
        all
    }

    const fn size(&self, bits: u8) -> f64 {
        if bits >= self.nan {
            return f64::NAN;
        }
        if let Some(infinity) = self.infinity
            && bits == infinity
        {
            return f64::INFINITY;
        }
        let exponent = (bits >> self.fraction) as i32;
        let fraction = (bits & ((1 << self.fraction) - 1)) as i32;
        // Subnormal numbers (exponent 0) have no leading 1, and the spacing of exponent 1.
        let (leading, power) = if exponent == 0 { (0, 1) } else { (1 << self.fraction, exponent) };
        let spacing = power - self.bias - self.fraction as i32;
        (leading + fraction) as f64 * f64::from_bits(((spacing + 1023) as u64) << 52)
    }
}

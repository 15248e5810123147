//! Numbers of several laws, the same for the same seed.

/// A generator of bits: splitmix64 (Steele et al., 2014).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between 0 and 1, neither of them.
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Gaussian, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A permutation of the first `n` numbers, by Fisher and Yates.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|at| order.swap(at, (self.bits() % (at as u64 + 1)) as usize));
        order
    }
}

/// How activations are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    Normal,
    /// A few channels are thirty times larger.
    Outliers,
    /// Student's, with three degrees of freedom: rare numbers are large.
    Student,
    /// Partial sums drift, they do not walk at random.
    Positive,
    /// One channel near the beginning is a thousand times larger than others, as in real models (Sun et al., 2024): what is
    /// added to its square later is too small to be seen.
    Massive,
}

impl Law {
    pub const ALL: [Law; 5] = [Law::Normal, Law::Outliers, Law::Student, Law::Positive, Law::Massive];

    /// Rows of `width` numbers, about 1 in size.
    pub fn numbers(self, rows: usize, width: usize, seed: u64) -> Vec<f32> {
        let mut dice = Dice::new(seed);
        let one = |at: usize, dice: &mut Dice| match self {
            Law::Normal => dice.normal(),
            Law::Outliers if at % 97 == 5 => 30.0 * dice.normal(),
            Law::Outliers => dice.normal(),
            Law::Student => {
                let squares: f64 = (0..3).map(|_| dice.normal().powi(2)).sum();
                dice.normal() / (squares / 3.0).sqrt()
            }
            Law::Positive => dice.normal().abs(),
            Law::Massive if at == 1 => 1000.0 * (1.0 + dice.normal().abs()),
            Law::Massive => dice.normal(),
        };
        (0..rows * width).map(|flat| one(flat % width, &mut dice) as f32).collect()
    }
}

/// Gaussian numbers of a size.
pub fn normal(count: usize, size: f64, seed: u64) -> Vec<f32> {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| (size * dice.normal()) as f32).collect()
}

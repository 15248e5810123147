//! Orders in which engines add up, in `f32`.

use super::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Sequential,
    Reversed,
    Shuffled,
    /// Eight sums side by side.
    Lanes,
    Pairwise,
    /// Blocks of 64, and then their sums.
    Blocks,
    /// One after the other, each product without a rounding of its own.
    Fused,
}

impl Order {
    pub const ALL: [Order; 7] = [
        Order::Sequential,
        Order::Reversed,
        Order::Shuffled,
        Order::Lanes,
        Order::Pairwise,
        Order::Blocks,
        Order::Fused,
    ];
}

/// Sums of `n` terms in an order.
pub struct Adder {
    pub order: Order,
    shuffled: Vec<usize>,
}

impl Adder {
    pub fn new(order: Order, n: usize, seed: u64) -> Self {
        let shuffled = if order == Order::Shuffled { Dice::new(seed).permutation(n) } else { Vec::new() };
        Self { order, shuffled }
    }

    pub fn sum(&self, terms: &[f32]) -> f32 {
        match self.order {
            Order::Sequential | Order::Fused => in_turn(terms),
            Order::Reversed => terms.iter().rev().fold(0.0, |sum, term| sum + term),
            // Rows of attention are shorter where fewer keys are seen.
            Order::Shuffled => {
                self.shuffled.iter().filter_map(|&at| terms.get(at)).fold(0.0, |sum, term| sum + term)
            }
            Order::Lanes => {
                let mut lanes = [0.0f32; 8];
                terms.iter().enumerate().for_each(|(at, term)| lanes[at % 8] += term);
                pairwise(&lanes)
            }
            Order::Pairwise => pairwise(terms),
            Order::Blocks => terms.chunks(64).map(in_turn).fold(0.0, |sum, block| sum + block),
        }
    }

    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        if self.order == Order::Fused {
            return a.iter().zip(b).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum));
        }
        let terms: Vec<f32> = a.iter().zip(b).map(|(a, b)| a * b).collect();
        self.sum(&terms)
    }
}

fn in_turn(terms: &[f32]) -> f32 {
    terms.iter().fold(0.0, |sum, term| sum + term)
}

fn pairwise(terms: &[f32]) -> f32 {
    match terms {
        [] => 0.0,
        [one] => *one,
        _ => {
            let (low, high) = terms.split_at(terms.len().div_ceil(2));
            pairwise(low) + pairwise(high)
        }
    }
}

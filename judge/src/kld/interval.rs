//! 95 % confidence intervals of means over tokens, by chunk.
//!
//! Tokens of one chunk are not independent: an error in the attention context affects all later tokens. Chunks are
//! independent, because each starts from an empty cache. Therefore the variance of a mean is estimated from the
//! sums of chunks (with a ratio estimator if the chunks have different sizes). With few chunks, Student's t is
//! used.

/// Returns the interval of a mean over tokens from the sums of chunks; `None` for fewer than two chunks.
pub(super) fn interval(sums: &[f64], counts: &[usize]) -> Option<[f64; 2]> {
    let (chunks, tokens) = (sums.len(), counts.iter().sum::<usize>() as f64);
    if chunks < 2 {
        return None;
    }
    let mean = sums.iter().sum::<f64>() / tokens;
    let squares: f64 = sums.iter().zip(counts).map(|(sum, &count)| (sum - mean * count as f64).powi(2)).sum();
    let k = chunks as f64;
    let error = (squares * k / (k - 1.0)).sqrt() / tokens;
    let half = t_95(chunks - 1) * error;
    Some([mean - half, mean + half])
}

/// Returns the 97.5 % quantile of Student's t: from a table for few degrees of freedom, otherwise from the
/// expansion around the normal quantile (accurate to three digits).
fn t_95(degrees: usize) -> f64 {
    const FEW: [f64; 8] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060];
    const Z: f64 = 1.959_963_985;
    if let Some(tabled) = FEW.get(degrees - 1) {
        return *tabled;
    }
    let nu = degrees as f64;
    let z = |power: i32| Z.powi(power);
    Z + (z(3) + Z) / (4.0 * nu)
        + (5.0 * z(5) + 16.0 * z(3) + 3.0 * Z) / (96.0 * nu.powi(2))
        + (3.0 * z(7) + 19.0 * z(5) + 17.0 * z(3) - 15.0 * Z) / (384.0 * nu.powi(3))
}

#[cfg(test)]
mod tests {
    use super::{interval, t_95};

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (degrees, tabled) in [(1, 12.706), (5, 2.571), (6, 2.447), (10, 2.228), (30, 2.042), (120, 1.980)]
        {
            assert!((t_95(degrees) - tabled).abs() < 1e-3, "{degrees}: {}", t_95(degrees));
        }
    }

    #[test]
    fn chunks_of_one_size_give_the_interval_of_their_means() {
        // Means 1, 2, 3 of 10 tokens each: sd 1, standard error 1/√3, t 4.3027.
        let [low, high] = interval(&[10.0, 20.0, 30.0], &[10; 3]).expect("three chunks");
        assert!((high - 2.0 - 4.3027 / 3f64.sqrt()).abs() < 1e-4 && (low + high - 4.0).abs() < 1e-9);
        assert_eq!(interval(&[10.0], &[10]), None);
    }
}

//! Check that values vary.

/// Variety of the values of one kind, with one row per token. Values that are all equal, or equal for every token,
/// agree with those of any other run and cannot reveal a fault.
#[derive(Clone, Debug, Default)]
pub(super) struct Variety {
    first: Option<Vec<f32>>,
    within_rows: bool,
    between_rows: bool,
    broken: Option<f32>,
}

impl Variety {
    /// Returns the variety among the rows of `values`, each with `width` values.
    pub(super) fn of(values: &[f32], width: usize) -> Self {
        let mut variety = Self::default();
        values.chunks(width.max(1)).for_each(|row| variety.add(row));
        variety
    }

    pub(super) fn add(&mut self, row: &[f32]) {
        self.broken = self.broken.or(row.iter().copied().find(|number| !number.is_finite()));
        self.within_rows |= row.iter().any(|number| *number != row[0]);
        match &self.first {
            None => self.first = Some(row.to_vec()),
            Some(first) => self.between_rows |= first != row,
        }
    }

    /// Returns the first value that is NaN or infinite.
    pub(super) fn broken(&self) -> Option<f32> {
        self.broken
    }

    /// Returns the reason why the values cannot reveal a fault, if there is one.
    pub(super) fn lacking(&self) -> Option<String> {
        match (self.within_rows, self.between_rows, self.first.as_deref()) {
            (true, true, _) => None,
            (false, false, Some([number, ..])) => Some(format!("every value is {number}")),
            (false, true, _) => Some("all values of a token are equal".to_owned()),
            _ => Some("the values are the same for every token".to_owned()),
        }
    }
}

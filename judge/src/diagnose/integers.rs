//! Quantised activations, detected from products that rounding does not explain.

use crate::check::{RunContext, RunResults, UnexplainedOperation};
use crate::checkpoint::Point;
use crate::ops::linear::exact::IntegerProducts;
use crate::verdict::SiteResult;

/// Maximum number of products to check. The search ends early if no candidate explains any of the first
/// [`FIRST`] products.
const LOOKED_AT: usize = 64;
const FIRST: usize = 6;

/// Returns the type of activation codes of the dump's engine, if quantised activations explain most of the products
/// that float arithmetic does not.
pub(super) fn integers_of(
    context: &RunContext,
    runs: &RunResults,
    rows: &[SiteResult],
) -> Option<IntegerProducts> {
    if !context.may_differ || context.profile.activation_codes.is_some() {
        return None;
    }
    let results = context.profile.results;
    let matrices = context.model.matrices();
    let stored = IntegerProducts::stored(results, matrices.iter().map(|(_, matrix)| *matrix));
    let outliers = || matrices.iter().find_map(|(_, matrix)| matrix.outliers());
    let all = match (stored, outliers()) {
        (Some(stored), _) => stored,
        (None, Some(threshold)) => IntegerProducts::with_outliers(threshold),
        (None, None) => IntegerProducts::all(results),
    };
    let products = || runs.unexplained.iter().take(LOOKED_AT);
    let explaining =
        |one: &UnexplainedOperation| one.products_that_explain(&all).filter(|found| !found.is_empty());
    let candidates = products().take(FIRST).find_map(explaining)?;
    let found: Vec<Vec<IntegerProducts>> =
        products().filter_map(|one| one.products_that_explain(&candidates)).collect();
    let votes = |one: &IntegerProducts| found.iter().filter(|found| found.contains(one)).count();
    // If several candidates explain equally many products, the first one is the simplest.
    let best = candidates.iter().rev().max_by_key(|one| votes(one))?;
    (2 * votes(best) > found.len()).then(|| with_plain_head(*best, context, rows))
}

/// Excludes the model's head from the quantised products if float products explain the logits.
fn with_plain_head(
    mut products: IntegerProducts,
    context: &RunContext,
    rows: &[SiteResult],
) -> IntegerProducts {
    let of_head = |wanted: Point| {
        let heads = rows.iter().filter(move |row| row.site.point == wanted);
        let explained = heads.filter_map(|row| row.explained.as_ref());
        explained.map(|one| one.side(context.role).is_explained()).reduce(|one, other| one && other)
    };
    if !products.codes.are_stored()
        && of_head(Point::Logits).or_else(|| of_head(Point::LastLogits)) == Some(true)
    {
        products.codes.whole_for = context.model.dimensions().vocab_size;
    }
    products
}

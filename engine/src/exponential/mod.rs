//! e^x in `f64`, for loops that compilers vectorise.

mod polynomial;

pub(crate) use polynomial::exp;

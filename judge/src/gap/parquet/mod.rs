//! Parquet files, read with the crate `parquet`: columns of numbers, of texts, and of lists of them.
//!
//! The crate allocates memory for the counts that a file states, and panics for some damaged files. Therefore
//! [`footer`] checks the schema before the crate reads it, [`pages`] limits the sizes of pages, and panics become
//! errors.

mod footer;
mod pages;
mod rows;
mod schema;
mod table;

pub use rows::ParquetRow;
pub use schema::ParquetFile;
pub(super) use table::ParquetTable;

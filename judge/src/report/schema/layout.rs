//! Layout of `report.json`: indented, with each row on one line.

use std::io::{Result, Write};

use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

/// Nesting depth of a row: an object in a list of an entry of `references`.
const ROW: usize = 5;

/// A JSON formatter that writes each row on one line and indents everything else.
#[derive(Default)]
pub(super) struct RowFormatter {
    indented: PrettyFormatter<'static>,
    depth: usize,
}

macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $method<W: ?Sized + Write>(&mut self, writer: &mut W $(, $argument: $type)*) -> Result<()> {
            match self.depth >= ROW {
                true => CompactFormatter.$method(writer $(, $argument)*),
                false => self.indented.$method(writer $(, $argument)*),
            }
        })*
    };
}

macro_rules! nest {
    ($($begin:ident, $end:ident;)*) => {
        $(fn $begin<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
            self.depth += 1;
            match self.depth >= ROW {
                true => CompactFormatter.$begin(writer),
                false => self.indented.$begin(writer),
            }
        }

        fn $end<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
            self.depth -= 1;
            match self.depth + 1 >= ROW {
                true => CompactFormatter.$end(writer),
                false => self.indented.$end(writer),
            }
        })*
    };
}

impl Formatter for RowFormatter {
    nest! {
        begin_array, end_array;
        begin_object, end_object;
    }

    forward! {
        begin_array_value(first: bool);
        end_array_value();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }
}

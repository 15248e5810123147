//! The plan of a matrix: all combinations of its axes, with the command of each cell.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use toml::{Spanned, Value};

use crate::error::Result;
use crate::matrix::axis::{ExpectedResult, MatrixAxis, axis_named, unknown_axis};
use crate::matrix::definition::{DefinitionText, MatrixDefinition, texts};
use crate::matrix::folder_names::names;
use crate::matrix::pattern::{CellFilter, expectations, fits_all};
use crate::matrix::template::Template;

/// Maximum number of cells; more are probably a mistake.
const MOST: usize = 10_000;
/// Default time limit of a step of a cell.
const USUAL_LIMIT: Duration = Duration::from_secs(3600);
/// Placeholder for the folder that `make` writes for a cell.
const OUT: &str = "out";

/// All cells of a matrix, with its rows, columns and time limit.
#[derive(Clone, Debug)]
pub struct MatrixPlan {
    /// Axes, in the order of the file.
    pub(crate) axes: Vec<MatrixAxis>,
    /// Indices of the axes that are the rows of the table.
    pub(crate) rows: Vec<usize>,
    /// Indices of the axes that are the columns: all other axes.
    pub(crate) columns: Vec<usize>,
    /// Cells in the order of the axes. The last axis varies fastest.
    pub cells: Vec<MatrixCell>,
    /// Time limit of each step of a cell.
    pub(crate) limit: Duration,
}

/// A cell: one combination of axis values.
#[derive(Clone, Debug)]
pub struct MatrixCell {
    /// Value of each axis.
    pub(crate) values: Vec<String>,
    /// Name that is unique in the matrix and valid as a folder name.
    pub(crate) name: String,
    /// Expected result, if a failure of the cell is known.
    pub(crate) expected: Option<ExpectedResult>,
    /// Location in the file, for error messages.
    line: (DefinitionText, Range<usize>),
    command: Vec<Template>,
    make: Option<MakeTemplate>,
    reads: Vec<Template>,
    axes: Vec<String>,
}

/// Template of the command that makes a dump.
#[derive(Clone, Debug)]
enum MakeTemplate {
    Shell(Template),
    Words(Vec<Template>),
}

/// Command that makes the dump that a cell compares.
#[derive(Clone, Debug)]
pub(crate) struct MakeCommand {
    /// Program and arguments.
    pub(crate) words: Vec<String>,
    /// Words of the command that may name input files.
    pub(crate) named: Vec<String>,
}

impl MatrixPlan {
    /// Reads a definition file.
    ///
    /// # Errors
    /// If the file cannot be read or contradicts itself; the error has the line.
    pub fn read(file: &Path) -> Result<Self> {
        let lines = DefinitionText::of(file)?;
        let written = lines.written()?;
        let axes = axes(&written, &lines)?;
        let (rows, columns) = sides(&written, &axes, &lines)?;
        let cells = cells(&written, &axes, &lines)?;
        let limit = match &written.limit {
            Some(limit) if *limit.get_ref() == 0 => {
                return Err(lines.refuse(limit.span(), "limit is 0, expected a positive number of seconds"));
            }
            Some(limit) => Duration::from_secs(*limit.get_ref()),
            None => USUAL_LIMIT,
        };
        Ok(Self { axes, rows, columns, cells, limit })
    }
}

impl MatrixCell {
    /// Returns the cell's values as text.
    pub(crate) fn words(&self) -> String {
        self.values.join(", ")
    }

    /// Returns the cell's values on some axes.
    pub(super) fn values_on(&self, axes: &[usize]) -> Vec<&str> {
        axes.iter().map(|&axis| self.values[axis].as_str()).collect()
    }

    /// Returns the arguments of xcheck for this cell, without its report folder. `made` is the path of the
    /// made input.
    pub fn command(&self, made: &str) -> Vec<String> {
        self.command.iter().map(|word| word.fill(|name| self.value(name, made))).collect()
    }

    /// Returns the command that makes the cell's dump, if it has one.
    pub(crate) fn make(&self, made: &str) -> Option<MakeCommand> {
        Some(match self.make.as_ref()? {
            MakeTemplate::Words(words) => {
                let words: Vec<_> =
                    words.iter().map(|word| word.fill(|name| self.value(name, made))).collect();
                MakeCommand { named: words.clone(), words }
            }
            MakeTemplate::Shell(line) => {
                let quoted = |text: String| {
                    shlex::try_quote(&text).map(|text| text.into_owned()).unwrap_or(text.clone())
                };
                let line = line.fill(|name| quoted(self.value(name, made)));
                let named = shlex::split(&line).unwrap_or_default();
                MakeCommand { words: ["sh", "-c", &line].map(str::to_owned).to_vec(), named }
            }
        })
    }

    /// Returns the additional input files and folders that the definition declares.
    pub(crate) fn reads(&self) -> Vec<String> {
        self.reads.iter().map(|word| word.fill(|name| self.value(name, ""))).collect()
    }

    /// Returns an error about the cell's command, with its line in the file.
    pub(crate) fn refuse(&self, problem: &str) -> crate::Error {
        let (lines, span) = &self.line;
        lines.refuse(span.clone(), format!("the command of {}: {problem}", self.words()))
    }

    fn value(&self, name: &str, made: &str) -> String {
        match self.axes.iter().position(|axis| axis == name) {
            Some(axis) => self.values[axis].clone(),
            None => made.to_owned(),
        }
    }
}

fn axes(written: &MatrixDefinition, lines: &DefinitionText) -> Result<Vec<MatrixAxis>> {
    let mut found: Vec<_> = written.axes.get_ref().iter().collect();
    found.sort_by_key(|(name, _)| name.span().start); // order of the file, which a map does not keep
    if found.is_empty() {
        return Err(lines.refuse(
            written.axes.span(),
            "there are no axes; give one or more, such as model = [\"a\", \"b\"]",
        ));
    }
    let axis = |(name, values): (&Spanned<String>, &Spanned<Value>)| {
        let refuse =
            |problem: String| lines.refuse(name.span(), format!("axis '{}': {problem}", name.get_ref()));
        let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if name.get_ref().is_empty() || !name.get_ref().chars().all(is_plain) || name.get_ref() == OUT {
            return Err(refuse(format!(
                "invalid name, expected letters, digits, - and _; {OUT} is reserved"
            )));
        }
        let values = texts(values.get_ref()).map_err(&refuse)?;
        if values.is_empty() {
            return Err(refuse("the axis has no values, expected one or more".to_owned()));
        }
        let mut known = BTreeSet::new();
        if let Some(twice) = values.iter().find(|value| !known.insert(*value)) {
            return Err(refuse(format!("duplicate value '{twice}'")));
        }
        Ok(MatrixAxis { name: name.get_ref().clone(), values })
    };
    found.into_iter().map(axis).collect()
}

/// Divides the axes into rows and columns. If only rows or only columns are given, all remaining axes become the
/// other. If neither is given, the last axis becomes the columns.
fn sides(
    written: &MatrixDefinition,
    axes: &[MatrixAxis],
    lines: &DefinitionText,
) -> Result<(Vec<usize>, Vec<usize>)> {
    let numbers = |names: &Spanned<Vec<Spanned<String>>>| {
        let number = |name: &Spanned<String>| axis_named(axes, name, lines);
        names.get_ref().iter().map(number).collect::<Result<Vec<_>>>()
    };
    let (rows, columns) = (written.rows.as_ref(), written.columns.as_ref());
    let others = |taken: &[usize]| (0..axes.len()).filter(|axis| !taken.contains(axis)).collect::<Vec<_>>();
    let (found_rows, found_columns) =
        match (rows.map(numbers).transpose()?, columns.map(numbers).transpose()?) {
            (Some(rows), Some(columns)) => (rows, columns),
            (Some(rows), None) => (rows.clone(), others(&rows)),
            (None, Some(columns)) => (others(&columns), columns),
            (None, None) => ((0..axes.len() - 1).collect(), vec![axes.len() - 1]),
        };
    let mut all = [found_rows.as_slice(), &found_columns].concat();
    all.sort_unstable();
    if all != others(&[]) {
        let span = columns.or(rows).map_or(0..0, Spanned::span);
        return Err(lines.refuse(span, "rows and columns together must name each axis once"));
    }
    Ok((found_rows, found_columns))
}

/// Templates that all cells share.
struct CellTemplates {
    command: Vec<Template>,
    make: Option<MakeTemplate>,
    reads: Vec<Template>,
}

fn cells(written: &MatrixDefinition, axes: &[MatrixAxis], lines: &DefinitionText) -> Result<Vec<MatrixCell>> {
    let templates = templates(written, axes, lines)?;
    let count = axes.iter().try_fold(1_usize, |count, axis| count.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > MOST) {
        return Err(lines.refuse(written.axes.span(), format!("the axes have more than {MOST} combinations")));
    }
    let mut combinations = product(axes);
    let include = fits_all(&written.include, "include", axes, &combinations, lines)?;
    let exclude = fits_all(&written.exclude, "exclude", axes, &combinations, lines)?;
    combinations.retain(|values| {
        let fits = |patterns: &[CellFilter]| patterns.iter().any(|pattern| pattern.is_of(values));
        (include.is_empty() || fits(&include)) && !fits(&exclude)
    });
    if combinations.is_empty() {
        return Err(lines.refuse(written.axes.span(), "include and exclude leave no cell"));
    }
    let expected = expectations(written, axes, &combinations, lines)?;
    let line = (lines.clone(), written.command.span());
    let cell = |((values, name), expected): ((Vec<String>, String), Option<ExpectedResult>)| MatrixCell {
        values,
        name,
        expected,
        line: line.clone(),
        command: templates.command.clone(),
        make: templates.make.clone(),
        reads: templates.reads.clone(),
        axes: axes.iter().map(|axis| axis.name.clone()).collect(),
    };
    let names = names(&combinations);
    let cells: Vec<MatrixCell> = combinations.into_iter().zip(names).zip(expected).map(cell).collect();
    refuse_twice(&cells)?;
    Ok(cells)
}

/// Rejects cells with equal commands. They can occur because two values that are written next to each other may
/// combine to the same text.
fn refuse_twice(cells: &[MatrixCell]) -> Result<()> {
    let mut known: BTreeMap<_, &MatrixCell> = BTreeMap::new();
    for cell in cells {
        let what = (cell.command(""), cell.make("").map(|make| make.words));
        if let Some(other) = known.insert(what, cell) {
            return Err(cell.refuse(&format!(
                "it is the same as that of {}; give each cell its own command",
                other.words()
            )));
        }
    }
    Ok(())
}

fn product(axes: &[MatrixAxis]) -> Vec<Vec<String>> {
    axes.iter().fold(vec![Vec::new()], |before, axis| {
        let longer = |values: Vec<String>| {
            axis.values.iter().map(move |value| values.iter().cloned().chain([value.clone()]).collect())
        };
        before.into_iter().flat_map(longer).collect()
    })
}

fn templates(
    written: &MatrixDefinition,
    axes: &[MatrixAxis],
    lines: &DefinitionText,
) -> Result<CellTemplates> {
    let read = |word: &Spanned<String>, may_be_made: bool| {
        let refuse = |problem: String| lines.refuse(word.span(), problem);
        let template = Template::parse(word.get_ref()).map_err(&refuse)?;
        let is_known = |name: &str| axes.iter().any(|axis| axis.name == name) || (may_be_made && name == OUT);
        if let Some(name) = template.slots().find(|name| !is_known(name)) {
            return Err(refuse(unknown_axis(name, axes, if may_be_made { &[OUT] } else { &[] })));
        }
        Ok(template)
    };
    let is_made = written.make.is_some();
    let command =
        written.command.get_ref().iter().map(|word| read(word, is_made)).collect::<Result<Vec<_>>>()?;
    let reads = written.reads.iter().map(|word| read(word, false)).collect::<Result<Vec<_>>>()?;
    let make = written.make.as_ref().map(|make| {
        let of = |text: &Value| {
            let text = texts(text).ok().and_then(|mut texts| texts.pop());
            let text =
                text.ok_or_else(|| lines.refuse(make.span(), "make has a word that is not a string"))?;
            read(&Spanned::new(make.span(), text), true)
        };
        match make.get_ref() {
            Value::Array(words) if !words.is_empty() => {
                Ok(MakeTemplate::Words(words.iter().map(of).collect::<Result<_>>()?))
            }
            line @ Value::String(_) => Ok(MakeTemplate::Shell(of(line)?)),
            _ => Err(lines.refuse(make.span(), "make is neither a shell command line nor a list of words")),
        }
    });
    let templates = CellTemplates { command, make: make.transpose()?, reads };
    check_use(written, &templates, axes, lines)?;
    Ok(templates)
}

/// Rejects an axis that no template uses, since all its cells would be equal. Also rejects a `make` command whose
/// output no cell compares.
fn check_use(
    written: &MatrixDefinition,
    templates: &CellTemplates,
    axes: &[MatrixAxis],
    lines: &DefinitionText,
) -> Result<()> {
    let made: Vec<&Template> = match &templates.make {
        None => Vec::new(),
        Some(MakeTemplate::Shell(line)) => vec![line],
        Some(MakeTemplate::Words(words)) => words.iter().collect(),
    };
    let uses =
        |words: &[&Template], name: &str| words.iter().any(|word| word.slots().any(|slot| slot == name));
    let command: Vec<&Template> = templates.command.iter().collect();
    let is_idle = |axis: &&MatrixAxis| !uses(&command, &axis.name) && !uses(&made, &axis.name);
    if let Some(MatrixAxis { name, .. }) = axes.iter().find(is_idle) {
        let problem = format!("axis '{name}' has no effect: neither command nor make uses {{{name}}}");
        return Err(lines.refuse(written.axes.span(), problem));
    }
    if let Some(make) = written.make.as_ref().filter(|_| !uses(&made, OUT) || !uses(&command, OUT)) {
        let problem = "make and command must both use {out}, the folder that make writes and command reads";
        return Err(lines.refuse(make.span(), problem));
    }
    Ok(())
}

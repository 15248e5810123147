//! `matrix.json`: the matrix for other programs.

use serde_json::{Map, Value, json};

use crate::checkpoint::Site;
use crate::matrix::{CellResult, CellSummary, ComparisonMatrix, MatrixPlan};
use crate::report::JsonNumber;

const SCHEMA: &str = "xcheck-matrix";
const VERSION: u32 = 2;

/// Returns the matrix as JSON with a trailing newline.
pub fn json(matrix: &ComparisonMatrix) -> String {
    format!("{:#}\n", value(matrix))
}

/// Returns the matrix as a JSON value.
pub(super) fn value(matrix: &ComparisonMatrix) -> Value {
    let MatrixPlan { axes, rows, columns, .. } = matrix.plan;
    let names = |numbers: &[usize]| numbers.iter().map(|&axis| axes[axis].name.clone()).collect::<Vec<_>>();
    let standing = matrix.standing();
    json!({
        "schema": SCHEMA,
        "version": VERSION,
        "xcheck": crate::report::program(),
        "command": matrix.command,
        "verdict": standing.verdict().map_or("error", |verdict| verdict.name()),
        "axes": axes.iter().map(|axis| json!({"name": axis.name, "values": axis.values})).collect::<Vec<_>>(),
        "rows": names(rows),
        "columns": names(columns),
        "architectures": matrix.by_architecture(),
        "cells": matrix.done.iter().map(|done| cell(matrix.plan, done)).collect::<Vec<_>>(),
    })
}

fn cell(plan: &MatrixPlan, done: &CellResult) -> Value {
    let axes = plan.axes.iter().zip(&done.cell.values);
    let values: Map<String, Value> =
        axes.map(|(axis, value)| (axis.name.clone(), value.clone().into())).collect();
    let found = done.found.as_ref().ok();
    let expected = done.cell.expected.as_ref().map(|expected| {
        json!({
            "verdict": expected.verdict.name(),
            "tap": expected.tap.map(|tap| tap.name()),
            "reason": expected.reason,
        })
    });
    json!({
        "name": done.cell.name,
        "values": values,
        "command": done.command,
        "standing": done.standing().name(),
        "verdict": found.map_or("error", |found| found.verdict.name()),
        "told": done.told(),
        "error": done.found.as_ref().err(),
        "reason": found.and_then(|found| found.reason.as_ref()),
        "bound_ratio": found.and_then(|found| found.bound_ratio).map(JsonNumber),
        "first_divergence": found.and_then(first),
        "because": found.and_then(|found| found.because.as_ref()),
        "expected": expected,
        "report": done.has_report.then(|| format!("cells/{}", done.cell.name)),
        "was_run": done.was_run,
        "key": done.key.as_ref().ok(),
        "not_kept": done.key.as_ref().err(),
    })
}

fn first(found: &CellSummary) -> Option<Value> {
    let Site { point, layer, pass } = found.first?;
    Some(json!({"tap": point.name(), "layer": layer, "pass": pass}))
}

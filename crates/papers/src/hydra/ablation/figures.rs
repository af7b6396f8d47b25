//! The paper's figures beside ours: which row over which, and what the paper has.

use serde::Serialize;

use super::{Condition, HYDRA, Row, find};
use crate::latency::Operation;

/// Which of a row's numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// The median.
    P50,
    /// The 99th percentile.
    P99,
}

/// A ratio of the paper's: `over` divided by `under`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// Of the paper.
    pub figure: &'static str,
    /// What it is about.
    pub what: &'static str,
    /// Read or written.
    pub operation: Operation,
    /// Under what.
    pub condition: Condition,
    /// The number that is compared.
    pub value: Value,
    /// The slower, in the paper.
    pub over: &'static str,
    /// The faster, in the paper.
    pub under: &'static str,
    /// As printed there, or computed from it.
    pub paper: f64,
}

impl Comparison {
    /// The same ratio of our rows.
    #[must_use]
    pub fn ours(&self, rows: &[Row]) -> Option<f64> {
        let number = |system| {
            let row = find(rows, system, self.operation, self.condition)?;
            Some(match self.value {
                Value::P50 => row.p50_ns,
                Value::P99 => row.p99_ns,
            } as f64)
        };
        Some(number(self.over)? / number(self.under)?)
    }
}

use Condition::{Failure, Flows, Quiet, Stragglers};
use Operation::{Read, Write};
use Value::{P50, P99};

const BACKUP: &str = "disk backup";
const COPIES: &str = "replication, both";

/// Figure, what it is about, whose ratio it is, and what the paper has.
macro_rules! comparisons {
    ($($figure:literal $what:literal: $operation:ident $condition:ident $value:ident of
        $over:tt / $under:tt = $paper:literal;)*) => {
        [$(Comparison {
            figure: $figure,
            what: $what,
            operation: $operation,
            condition: $condition,
            value: $value,
            over: $over,
            under: $under,
            paper: $paper,
        }),*]
    };
}

/// The ratios that the text of 7.1 gives; a reduction by x is 1 / (1 - x).
pub const COMPARISONS: [Comparison; 22] = comparisons! {
    "9a" "disk backup over hydra": Read Quiet P50 of BACKUP / HYDRA = 1.79;
    "9a" "disk backup over hydra": Read Stragglers P99 of BACKUP / HYDRA = 1.93;
    "9a" "disk backup over hydra": Write Quiet P50 of BACKUP / HYDRA = 1.9;
    "9a" "disk backup over hydra": Write Stragglers P99 of BACKUP / HYDRA = 2.2;
    "9" "hydra over copies": Read Quiet P50 of HYDRA / COPIES = 1.1;
    "9" "hydra over copies": Write Quiet P50 of HYDRA / COPIES = 1.1;
    "10" "run-to-completion": Read Quiet P50 of "coding alone" / "and run-to-completion" = 2.04;
    "10" "run-to-completion": Write Quiet P50 of "coding alone" / "and run-to-completion" = 2.04;
    "10" "in-place coding":
        Read Quiet P50 of "and run-to-completion" / "and in-place coding" = 1.39;
    "10" "in-place coding":
        Write Quiet P50 of "and run-to-completion" / "and in-place coding" = 1.39;
    "10" "late binding": Read Stragglers P99 of "no late binding" / HYDRA = 2.56;
    "10" "late binding costs": Read Quiet P50 of HYDRA / "no late binding" = 1.06;
    "10" "async encoding, all splits awaited":
        Write Quiet P50 of "no async encoding" / HYDRA = 1.61;
    "10" "async encoding, k awaited":
        Write Quiet P50 of "ec-only, no async encoding" / "ec-only" = 1.61;
    "11" "no late binding over hydra": Read Stragglers P99 of "no late binding" / HYDRA = 1.55;
    "11" "no async encoding over hydra": Write Stragglers P99 of "no async encoding" / HYDRA = 1.34;
    "12a" "disk backup over hydra": Read Flows P50 of BACKUP / HYDRA = 1.97;
    "12a" "copies over hydra, tail": Read Flows P99 of COPIES / HYDRA = 1.33;
    "12a" "copies over hydra, tail": Write Flows P99 of COPIES / HYDRA = 1.50;
    "12b" "disk backup over hydra": Read Failure P50 of BACKUP / HYDRA = 8.37;
    "12b" "disk backup over hydra": Write Failure P50 of BACKUP / HYDRA = 4.79;
    "12b" "hydra over copies": Read Failure P50 of HYDRA / COPIES = 1.0;
};

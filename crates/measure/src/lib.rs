//! Tools shared by all measurements: seeded random numbers ([`random`]), YCSB's key popularity
//! ([`zipf`]), medians and spread ([`statistics`]), tables as CSV and curves as SVG ([`figure`]).

pub mod figure;
pub mod random;
pub mod statistics;
pub mod zipf;

//! A procedure that adds one to a number of a cache.

/// Adds one to the number at the address that is its first argument, where that is here. What a
/// procedure does then ends its text.
pub const BEGIN: &str = r#"(module
    (import "cenote" "load" (func $load (param i64 i32 i32) (result i32)))
    (import "cenote" "store" (func $store (param i64 i32 i32) (result i32)))
    (memory (export "memory") 2)
    (func (export "frame") (result i32) (i32.const 65536))
    (func (export "step") (result i32)
        (local $fault i32)
        (local.set $fault
            (call $load (i64.load (i32.const 65560)) (i32.const 512) (i32.const 8)))
        (if (i32.eqz (local.get $fault)) (then
            (i64.store (i32.const 512) (i64.add (i64.load (i32.const 512)) (i64.const 1)))
            (local.set $fault
                (call $store (i64.load (i32.const 65560)) (i32.const 512) (i32.const 8)))))"#;

/// Goes to where the address is, if that is elsewhere.
pub const ADD: [&str; 2] = [
    BEGIN,
    r#"
        (i64.store (i32.const 65536) (i64.load (i32.const 65560)))
        (i32.store (i32.const 65544) (i32.const 8))
        (if (i32.eqz (local.get $fault)) (then (return (i32.const 0))))
        (select (i32.const 2) (i32.const 5) (i32.eq (local.get $fault) (i32.const 1)))))"#,
];

use proptest::prelude::*;

use super::*;
use crate::Configuration;
use crate::tuner::Measurement;

const TEXT: &str = "\
cenote-cache-model 2
space c=4 s=2 b=8 q=2 levels=powers
# A comment.
table transport=sim distance_ns=1000 record_bytes=16 writes=0
1 0 1 1 250000 4 3.5 9.25
2 1 8 2 1.5e7 10 8 30
table transport=tcp distance_ns=0 record_bytes=4096 writes=5
end
";

fn refused(text: &str) -> String {
    text.parse::<Model>().unwrap_err().to_string()
}

#[test]
fn a_file_is_read_as_it_is_documented() {
    let model: Model = TEXT.parse().unwrap();
    assert_eq!(model.space(), Space::new(4, 2, 8, 2).unwrap());
    let key = Key {
        transport: Transport::Sim,
        distance_ns: 1000,
        record_bytes: 16,
        writes: Writes::NONE,
    };
    let table = model.table(key).unwrap();
    assert_eq!(table.measured_count(), 2);
    let configuration = Configuration {
        c: 2,
        s: 1,
        b: 8,
        q: 2,
    };
    let measured = Measurement::new(1.5e7, 10.0, 8.0, 30.0);
    assert_eq!(table.get(configuration), measured);
    assert_eq!(model.tables().count(), 2);
    assert_eq!(model.to_text().parse(), Ok(model));
}

#[test]
fn a_file_of_the_first_version_is_of_reads() {
    let old = TEXT.replacen("model 2", "model 1", 1);
    assert_eq!(refused(&old), "line 4: expected the end of the line");
    let old = old.replace(" writes=5", "").replace(" writes=0", "");
    let model: Model = old.parse().unwrap();
    assert_eq!(model.tables().count(), 2);
    assert!(model.tables().all(|(key, _)| key.writes == Writes::NONE));
    assert!(model.to_text().starts_with("cenote-cache-model 2\n"));
    assert_eq!(model.to_text().parse(), Ok(model));
}

#[test]
fn a_share_of_writes_that_was_not_measured_is_said() {
    let model: Model = TEXT.parse().unwrap();
    let five = Writes::new(5).unwrap();
    let of = |writes, transport| {
        let mix = model.of_writes(writes);
        mix.surface(transport, 0, 16, LatencyOf::Mean).err()
    };
    assert_eq!(of(five, Transport::Tcp), None);
    assert_eq!(of(five, Transport::Sim), Some(NoTable::Writes(five)));
    let none = Some(NoTable::Writes(Writes::NONE));
    assert_eq!(of(Writes::NONE, Transport::Tcp), none);
}

#[test]
fn each_mistake_is_named_with_its_line() {
    let with = |old: &str, new: &str| refused(&TEXT.replacen(old, new, 1));
    for (old, new, said) in [
        (
            "cenote-cache-model",
            "GIF89a",
            "line 1: not a model of a cache: it begins with \"cenote-cache-model 2\"",
        ),
        (
            "model 2",
            "model 3",
            "line 1: version 3 of the format; this program reads 1 to 2",
        ),
        ("q=2", "q=0", "line 2: space is out of range"),
        ("q=2", "q=9999999999", "line 2: expected q"),
        ("levels=powers", "", "line 2: expected levels"),
        ("sim", "pigeon", "line 4: expected transport"),
        ("1000", "1000000001", "line 4: distance_ns is out of range"),
        ("=16", "=0", "line 4: record_bytes is out of range"),
        ("writes=5", "writes=101", "line 7: writes is out of range"),
        ("writes=5", "writes=5%", "line 7: expected writes"),
        (" writes=5", "", "line 7: expected writes"),
        ("250000", "NaN", "line 5: a measurement is out of range"),
        ("250000", "-1", "line 5: a measurement is out of range"),
        ("3.5 9.25", "3.5 3", "line 5: a measurement is out of range"),
        ("9.25", "", "line 5: expected a p99 latency"),
        ("9.25", "9.25 1", "line 5: expected the end of the line"),
        (
            "2 1 8 2",
            "3 1 8 2",
            "line 6: not a configuration that this model measures",
        ),
        (
            "2 1 8 2",
            "1 0 1 1",
            "line 6: a second row for this configuration",
        ),
        (
            "end\n",
            "",
            "line 8: the file is cut off: there is no line \"end\"",
        ),
        (
            "end\n",
            "end\nend\n",
            "line 9: something after the line \"end\"",
        ),
        ("space", "#", "line 4: the line \"space\" comes first"),
    ] {
        assert_eq!(with(old, new), said, "{new}");
    }
    assert_eq!(
        refused(""),
        "line 1: not a model of a cache: it begins with \"cenote-cache-model 2\""
    );
}

#[test]
fn a_space_too_large_to_be_measured_is_refused_before_it_takes_memory() {
    let text = TEXT.replace("c=4 s=2 b=8 q=2", "c=1024 s=1024 b=4096 q=1024");
    // 12 * 11 * 13 * 11 combinations are fine.
    assert!(text.parse::<Model>().is_ok());
    let mut many = String::from("cenote-cache-model 1\nspace c=1 s=0 b=1 q=1 levels=powers\n");
    for distance in 0..300 {
        many.push_str(&format!(
            "table transport=sim distance_ns={distance} record_bytes=8\n"
        ));
    }
    many.push_str("end\n");
    assert_eq!(refused(&many), "line 259: more than 256 tables");
}

#[test]
fn what_was_not_measured_is_named() {
    let model: Model = TEXT.parse().unwrap();
    let surface = |transport, distance_ns, record_bytes| {
        let surface = model.surface(transport, distance_ns, record_bytes, LatencyOf::Mean);
        surface.map(|_| ())
    };
    assert_eq!(
        surface(Transport::Rdma, 0, 8),
        Err(NoTable::Transport(Transport::Rdma))
    );
    assert_eq!(
        surface(Transport::Sim, 1001, 8),
        Err(NoTable::Distance { farthest_ns: 1000 })
    );
    assert_eq!(
        surface(Transport::Sim, 0, 17),
        Err(NoTable::Record { largest_bytes: 16 })
    );
    assert_eq!(surface(Transport::Sim, 1000, 16), Ok(()));
}

#[test]
fn between_two_sizes_of_records_both_tables_count_and_on_one_it_alone() {
    let row = "1 0 1 1";
    let text = format!(
        "cenote-cache-model 1\nspace c=1 s=0 b=1 q=1 levels=powers\n\
         table transport=sim distance_ns=7 record_bytes=16\n{row} 10 9 9 9\n\
         table transport=sim distance_ns=7 record_bytes=64\n{row} 20 1 1 1\n\
         table transport=sim distance_ns=9 record_bytes=32\n{row} 1 1 1 1\nend\n"
    );
    let model: Model = text.parse().unwrap();
    for (record_bytes, throughput, latency) in [
        (1, 10.0, 9.0),
        (16, 10.0, 9.0),
        (17, 10.0, 9.0),
        (63, 10.0, 9.0),
        (64, 20.0, 1.0),
    ] {
        let surface = model.surface(Transport::Sim, 5, record_bytes, LatencyOf::Mean);
        let configuration = Configuration {
            c: 1,
            s: 0,
            b: 1,
            q: 1,
        };
        let prediction = surface.unwrap().predict(configuration).unwrap();
        let margin = 1.0 + MARGIN;
        assert_eq!(prediction.throughput_per_second, throughput / margin);
        assert_eq!(prediction.latency_us, latency * margin, "{record_bytes}");
    }
}

/// Pieces of which texts are made that are nearly models.
fn nearly() -> impl Strategy<Value = String> {
    let lines = [
        "cenote-cache-model 1",
        "cenote-cache-model 2",
        "space c=4 s=2 b=8 q=2 levels=powers",
        "space c=30 s=30 b=500 q=16 levels=powers+ends",
        "table transport=sim distance_ns=1000 record_bytes=16",
        "table transport=sim distance_ns=1000 record_bytes=16 writes=5",
        "table transport=sim distance_ns=18446744073709551616 record_bytes=-1",
        "1 0 1 1 250000 4 3.5 9.25",
        "2 1 8 2 inf 1e999 -0 0x10",
        "1 1 2 1 1e-320 1e308 1 2",
        "end",
        "#",
        "",
    ];
    let line = prop_oneof![
        8 => proptest::sample::select(lines.to_vec()).prop_map(str::to_owned),
        1 => "[ -~]{0,40}",
        1 => any::<String>(),
    ];
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn whatever_the_text_it_is_refused_or_comes_back_the_same(text in nearly()) {
        if let Ok(model) = text.parse::<Model>() {
            prop_assert_eq!(model.to_text().parse(), Ok(model));
        }
    }

    #[test]
    fn a_model_with_a_byte_changed_or_cut_off_is_no_panic(
        at in 0..TEXT.len(), byte in 0_u8..128, cut in 0..TEXT.len(),
    ) {
        let mut bytes = TEXT.as_bytes().to_vec();
        bytes[at] = byte;
        let text = String::from_utf8(bytes).unwrap();
        if let Ok(model) = text.parse::<Model>() {
            prop_assert_eq!(model.to_text().parse(), Ok(model));
        }
        // Without its last newline it is still whole.
        if cut < TEXT.len() - 1 {
            prop_assert!(TEXT[..cut].parse::<Model>().is_err());
        }
    }
}

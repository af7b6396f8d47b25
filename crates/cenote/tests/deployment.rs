//! What is shipped for real machines: the example of a host's settings, the units of systemd.

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Folder, cenote, has, run, signal};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../dist")
        .join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(shipped(name)).expect("a file that is shipped")
}

/// The example is read to its end: the address in it is not of this machine.
#[test]
fn the_example_of_a_hosts_settings_is_understood() {
    let folder = Folder::new();
    let key = folder.path().join("cluster.key");
    run(&["key", "new", "--out", key.to_str().expect("UTF-8")]).expect(0);
    let file = folder.path().join("host.toml");
    let example = read("host.toml")
        .replace("\"8G\"", "\"64M\"")
        .replace("\"128M\"", "\"1M\"");
    assert!(example.contains("tcp:10.0.0.7:7000") && example.contains("shm:/run/cenote/socket"));
    // systemd makes /run/cenote for the unit.
    let socket = format!("shm:{}", folder.path().join("socket").display());
    let example = example.replace("shm:/run/cenote/socket", &socket);
    fs::write(&file, example.replace("10.0.0.7", "192.0.2.1")).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let ended = run(&["host", "--config", file, "--lock", "never"]).expect(1);
    assert!(ended.stderr.contains("start host h00"), "{ended:#?}");
    assert!(ended.stderr.contains("tcp:192.0.2.1:7000"), "{ended:#?}");

    fs::write(folder.path().join("bad.toml"), "name = \"h\"\ncolour = 1\n").expect("a file");
    let bad = folder.path().join("bad.toml");
    let ended = run(&["host", "--config", bad.to_str().expect("UTF-8")]).expect(1);
    assert!(
        ended.stderr.contains("line 2") && ended.stderr.contains("colour"),
        "{ended:#?}"
    );
    let missing = run(&["host", "--config", "/nowhere/host.toml"]).expect(1);
    assert!(
        missing.stderr.contains("/nowhere/host.toml"),
        "{missing:#?}"
    );
}

/// The units with our binary in the place of the one that will be installed.
fn units(folder: &Folder) -> Vec<PathBuf> {
    let names = [
        ("cenote-host.service", "cenote-host.service"),
        ("cenote-volume@.service", "cenote-volume@v0.service"),
        ("cenote-kv.service", "cenote-kv.service"),
        ("cenote-cache@.service", "cenote-cache@c0.service"),
        ("cenote-store@.service", "cenote-store@s0.service"),
    ];
    let unit = |(name, instance): (&str, &str)| {
        let text = read(name).replace("/usr/bin/cenote", env!("CARGO_BIN_EXE_cenote"));
        fs::write(folder.path().join(name), &text).expect("a file");
        let path = folder.path().join(instance);
        fs::write(&path, text).expect("a file");
        path
    };
    names.map(unit).to_vec()
}

/// What systemd says of the exposure of units that it takes, each of at most so many tenths of 10.
fn rate(units: &[PathBuf], exposure_max: &str) -> Option<String> {
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command.args(arguments).args(units).output()
    };
    if !has(&["systemd-analyze"]) {
        return None;
    }
    let verified = analyze(&["verify", "--man=no", "--recursive-errors=no"]).expect("it runs");
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");
    let threshold = format!("--threshold={exposure_max}");
    let rated = analyze(&["security", "--offline=true", "--no-pager", &threshold]);
    let rated = rated.expect("it ran a moment ago");
    let said = String::from_utf8_lossy(&rated.stdout).into_owned();
    assert!(rated.status.success(), "{said}");
    Some(said)
}

#[test]
fn systemd_takes_the_units_and_finds_them_hardened() {
    let folder = Folder::new();
    let units = units(&folder);
    let Some(said) = rate(&units, "25") else {
        return;
    };
    assert_eq!(
        said.matches("Overall exposure level").count(),
        units.len(),
        "{said}"
    );
}

/// It needs root and devices, so it is rated apart: as much is shut as may be.
#[test]
fn systemd_takes_the_unit_of_swap() {
    let folder = Folder::new();
    let unit = folder.path().join("cenote-swap.service");
    let text = read("cenote-swap.service");
    fs::write(
        &unit,
        text.replace("/usr/bin/cenote", env!("CARGO_BIN_EXE_cenote")),
    )
    .expect("a file");
    if rate(&[unit], "60").is_none() {
        return;
    }
    // Under a limit it refuses to start; killed, it loses pages; without devices it has no swap.
    for line in [
        "Type=forking",
        "Restart=no",
        "SendSIGKILL=no",
        "Slice=-.slice",
        "LimitMEMLOCK=infinity",
        "OOMScoreAdjust=-1000",
        "StateDirectory=cenote-swap",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
    for hides_devices in [
        "PrivateDevices=",
        "ProtectClock=",
        "DevicePolicy=",
        "MemoryMax=",
    ] {
        assert!(
            !text.lines().any(|line| line.starts_with(hides_devices)),
            "{hides_devices}"
        );
    }
}

/// What stands in the unit is what the program understands.
#[test]
fn the_unit_of_swap_says_what_the_program_understands() {
    let text = read("cenote-swap.service");
    let value = |key: &str| {
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix(key));
        found
            .unwrap_or_else(|| panic!("{key}"))
            .trim_matches('"')
            .to_owned()
    };
    let options = value("Environment=\"SWAP=");
    let folder = Folder::new();
    let nowhere = folder.path().join("cluster.toml");
    for key in ["ExecStart=/usr/bin/cenote ", "ExecStop=/usr/bin/cenote "] {
        let line = value(key).replace("$SWAP", &options).replace(
            "/var/lib/cenote-swap/cluster.toml",
            nowhere.to_str().expect("UTF-8"),
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        // 2 would be wrong usage.
        let ended = run(&words).expect(1);
        let names = [nowhere.to_str().expect("UTF-8"), "no swap"];
        assert!(
            names.iter().any(|name| ended.stderr.contains(name)),
            "{line}: {ended:#?}"
        );
    }
}

/// What stands in the unit, with the example of its variables, is what the program understands.
#[test]
fn the_unit_of_a_kv_node_says_what_the_program_understands() {
    let folder = Folder::new();
    let nowhere = folder.path().join("cluster.key");
    let nowhere = nowhere.to_str().expect("UTF-8");
    let unit = read("cenote-kv.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/cenote "));
    let line = line.expect("it starts the program");
    let mut line = line.replace("/etc/cenote/cluster.key", nowhere);
    for setting in read("kv.env").lines() {
        if let Some((name, value)) = setting
            .split_once('=')
            .filter(|_| !setting.starts_with('#'))
        {
            assert!(line.contains(name), "{name}");
            line = line.replace(&format!("${{{name}}}"), value);
            line = line.replace(&format!("${name}"), value);
        }
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    // 2 would be wrong usage.
    let ended = run(&words).expect(1);
    assert!(ended.stderr.contains(nowhere), "{line}: {ended:#?}");
    for setting in ["Restart=on-failure", "ExecReload=/bin/kill -HUP $MAINPID"] {
        assert!(unit.lines().any(|found| found == setting), "{setting}");
    }
}

/// What stands in the units, with the example of the store's variables, is what the program
/// understands.
#[test]
fn the_units_of_caches_and_stores_say_what_the_program_understands() {
    let folder = Folder::new();
    let nowhere = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    };
    let (cluster, key) = (nowhere("cluster.toml"), nowhere("cluster.key"));
    for (unit, names) in [
        ("cenote-cache@.service", &cluster),
        ("cenote-store@.service", &key),
    ] {
        let unit = read(unit);
        let mut lines = unit.lines();
        let line = lines.find_map(|line| line.strip_prefix("ExecStart=/usr/bin/cenote "));
        let mut line = line.expect("it starts the program").replace("%i", "x");
        for setting in read("store.env").lines() {
            if let Some((name, value)) = setting
                .split_once('=')
                .filter(|_| !setting.starts_with('#'))
            {
                line = line.replace(&format!("${{{name}}}"), value);
                line = line.replace(&format!("${name}"), value);
            }
        }
        assert!(!line.contains('$'), "{line}");
        let line = line
            .replace("/var/lib/cenote/cluster.toml", &cluster)
            .replace("/etc/cenote/cluster.key", &key);
        let words: Vec<&str> = line.split_whitespace().collect();
        // 2 would be wrong usage.
        let ended = run(&words).expect(1);
        assert!(ended.stderr.contains(names.as_str()), "{line}: {ended:#?}");
        for setting in ["Type=notify", "NotifyAccess=main", "Restart=on-failure"] {
            assert!(unit.lines().any(|found| found == setting), "{setting}");
        }
    }
    // Two managers would end each other.
    let cache = read("cenote-cache@.service");
    let prevents = "RestartPreventExitStatus=4";
    assert!(cache.lines().any(|found| found == prevents), "{prevents}");
}

/// Its unit is of the type `notify`: without a word systemd would end it.
#[test]
fn a_store_tells_systemd_when_clients_can_connect_and_when_it_stops() {
    let folder = Folder::new();
    let path = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    };
    run(&["key", "new", "--out", &path("cluster.key")]).expect(0);
    run(&["store", "create", &path("s0"), "--size", "1M"]).expect(0);
    let manager = UnixDatagram::bind(path("notify")).expect("a socket");
    let mut server = cenote();
    server
        .args(["store", "serve", &path("s0"), "--key", &path("cluster.key")])
        .args(["--listen", &format!("shm:{}", path("socket"))])
        .env("NOTIFY_SOCKET", path("notify"))
        .stdout(Stdio::piped());
    let mut server = server.spawn().expect("the binary runs");
    let mut line = String::new();
    let mut said = BufReader::new(server.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    assert!(line.starts_with("ready "), "{line}");
    let told = || {
        let mut bytes = [0; 64];
        let len = manager.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..len]).trim_end().to_owned()
    };
    assert_eq!(told(), "READY=1");
    signal(server.id(), "TERM");
    assert_eq!(told(), "STOPPING=1");
    assert!(server.wait().expect("a child of ours").success());
}

/// What is shipped in `dist` is installed, and a package ends what it installed before it goes.
#[test]
fn every_unit_is_installed_and_stopped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = |path: &str| fs::read_to_string(root.join(path)).expect("a file that is shipped");
    let (install, deb, rpm) = (
        text("scripts/install.sh"),
        text("dist/package/deb/prerm"),
        text("dist/package/rpm/preun"),
    );
    for entry in fs::read_dir(root.join("dist")).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8");
        if !name.ends_with(".service") {
            continue;
        }
        assert!(install.contains(name), "{name} is not installed");
        let running = name.replace("@.", "@*.");
        for script in [&deb, &rpm] {
            assert!(script.contains(&running), "{running} is not stopped");
        }
    }
}

/// What the program relies on: a unit that lost one of these would start, and fail later.
#[test]
fn the_units_say_what_the_program_relies_on() {
    let host = read("cenote-host.service");
    for line in [
        "Type=notify",
        "NotifyAccess=main",
        "ExecStart=/usr/bin/cenote host --config /etc/cenote/host.toml",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "FileDescriptorStoreMax=7680",
        "LimitMEMLOCK=infinity",
        "Restart=on-failure",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
    ] {
        assert!(host.lines().any(|found| found == line), "{line}");
    }
    let volume = read("cenote-volume@.service");
    for line in [
        "Type=notify",
        "Restart=on-failure",
        "LimitMEMLOCK=infinity",
        "ProtectSystem=strict",
    ] {
        assert!(volume.lines().any(|found| found == line), "{line}");
    }
    assert!(read("host.toml").contains("keep_slabs = true"));
}

/// systemd removes the folder of a unit that stops, and the sockets in it.
#[test]
fn no_volume_shares_its_folder_with_another_unit_whatever_its_name() {
    let folder_of = |unit: &str| {
        let text = read(unit);
        let folder = text
            .lines()
            .find_map(|line| line.strip_prefix("RuntimeDirectory="));
        folder.expect("a folder").to_owned()
    };
    let of_volumes = folder_of("cenote-volume@.service");
    let before_name = of_volumes.strip_suffix("%i").expect("one for each volume");
    for unit in [
        "cenote-host.service",
        "cenote-kv.service",
        "cenote-store@.service",
    ] {
        let folder = folder_of(unit);
        assert!(!folder.starts_with(before_name), "{unit}: {folder}");
    }
    let serves = format!("--socket /run/{of_volumes}/nbd");
    assert!(read("cenote-volume@.service").contains(&serves), "{serves}");
}

/// A slip in one of them, such as an apostrophe in a quoted text, is seen before it is run.
#[test]
fn every_script_is_understood_by_the_shell() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut scripts = vec![root.join(".ci/run")];
    for folder in ["scripts", "tests/clients"] {
        for entry in fs::read_dir(root.join(folder)).expect("a folder of scripts") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|name| name == "sh") {
                scripts.push(path);
            }
        }
    }
    assert!(
        scripts.len() > 10,
        "only {} scripts were found",
        scripts.len()
    );
    for script in scripts {
        let parsed = Command::new("sh")
            .arg("-n")
            .arg(&script)
            .output()
            .expect("sh");
        assert!(
            parsed.status.success(),
            "{}: {}",
            script.display(),
            String::from_utf8_lossy(&parsed.stderr)
        );
    }
}

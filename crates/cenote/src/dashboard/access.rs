//! Who may ask the dashboard for what.
//!
//! - *The name it is called by* is one that it knows: a page of another site whose name was pointed at
//!   this machine (DNS rebinding) is refused.
//! - *Another site's page* gets no data, by `Sec-Fetch-Site`, and orders nothing, by `Origin`.
//! - *The token* is asked for with every order, and beyond loopback with everything but the empty page.
//!   It travels in `Authorization` alone, which no browser adds by itself: there is no cookie that
//!   another page could make use of.

use std::fmt;
use std::net::IpAddr;

use hyper::http::uri::Authority;
use subtle::ConstantTimeEq;

/// What has to be shown, in hexadecimal as `cenote key new` writes it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn new(hex: String) -> Self {
        Self(hex)
    }

    fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The rules of one dashboard.
#[derive(Clone, Debug)]
pub struct Access {
    /// Names by which browsers reach it, besides addresses.
    pub names: Vec<String>,
    /// Whether it is served over TLS.
    pub is_tls: bool,
    /// Whether other machines reach it.
    pub is_remote: bool,
    /// None: nothing is ordered.
    pub token: Option<Token>,
}

/// What of a request decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    pub host: Option<&'a str>,
    pub origin: Option<&'a str>,
    /// `Sec-Fetch-Site`.
    pub site: Option<&'a str>,
    pub authorization: Option<&'a str>,
    /// The address of this machine that it came to.
    pub at: Option<IpAddr>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Denied {
    /// Called by a name that it does not have.
    Host,
    /// By a page of another site.
    Site,
    /// The token is missing, ...
    NoToken,
    /// ... or is another one.
    WrongToken,
    /// It takes no orders at all.
    ReadOnly,
}

impl Denied {
    /// For people.
    pub fn why(self) -> &'static str {
        match self {
            Self::Host => "this dashboard does not have that host name: --name adds one",
            Self::Site => "requests from other sites are not allowed",
            Self::NoToken => "the dashboard's token is required",
            Self::WrongToken => "wrong token",
            Self::ReadOnly => "this dashboard is read-only: start it with --token-file",
        }
    }
}

impl Access {
    /// Whether the page itself is given out: it says nothing of the cluster.
    ///
    /// # Errors
    /// [`Denied::Host`].
    pub fn check_page(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        let host = asked.host.and_then(|host| host.parse::<Authority>().ok());
        let host = host.filter(|host| !host.as_str().contains('@'));
        let known = host.is_some_and(|host| self.is_known(host.host(), asked.at));
        known.then_some(()).ok_or(Denied::Host)
    }

    /// Whether what is known of the cluster is told.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check_read(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        self.check_page(asked)?;
        // Programs send neither of the two; browsers of late send the first.
        if asked
            .site
            .is_some_and(|site| !matches!(site, "same-origin" | "none"))
        {
            return Err(Denied::Site);
        }
        if asked.origin.is_some() && !self.is_own_origin(asked) {
            return Err(Denied::Site);
        }
        match self.is_remote {
            true => self.check_token(asked),
            false => Ok(()),
        }
    }

    /// Whether an order is taken.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check_order(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        self.check_page(asked)?;
        if !self.is_own_origin(asked) || asked.site.is_some_and(|site| site != "same-origin") {
            return Err(Denied::Site);
        }
        self.check_token(asked)
    }

    fn is_known(&self, host: &str, at: Option<IpAddr>) -> bool {
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        match bare.unwrap_or(host).parse::<IpAddr>() {
            // An address cannot be pointed elsewhere. Behind a forwarded port it is not the one that the
            // request came to: --name says it then.
            Ok(address) => {
                let address = address.to_canonical();
                let parse = |name: &String| name.trim_matches(['[', ']']).parse::<IpAddr>();
                let named = self.names.iter().flat_map(parse);
                at.into_iter()
                    .chain(named)
                    .any(|known| known.to_canonical() == address)
            }
            Err(_) => {
                let is_local = !self.is_remote && host.eq_ignore_ascii_case("localhost");
                let mut names = self.names.iter();
                is_local || names.any(|name| name.eq_ignore_ascii_case(host))
            }
        }
    }

    fn is_own_origin(&self, asked: &Asked<'_>) -> bool {
        let (Some(origin), Some(host)) = (asked.origin, asked.host) else {
            return false;
        };
        let scheme = if self.is_tls { "https" } else { "http" };
        let own = origin.split_once("://");
        own.is_some_and(|(of, from)| of == scheme && from.eq_ignore_ascii_case(host))
    }

    fn check_token(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        let token = self.token.as_ref().ok_or(Denied::ReadOnly)?;
        let shown = asked
            .authorization
            .and_then(|text| text.strip_prefix("Bearer "));
        match shown {
            Some(shown) if token.is(shown) => Ok(()),
            Some(_) => Err(Denied::WrongToken),
            None => Err(Denied::NoToken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn local() -> Access {
        Access {
            names: Vec::new(),
            is_tls: false,
            is_remote: false,
            token: Some(Token::new(TOKEN.to_owned())),
        }
    }

    fn remote() -> Access {
        Access {
            names: vec!["pool.example.org".to_owned()],
            is_tls: true,
            is_remote: true,
            ..local()
        }
    }

    fn asked(host: &str) -> Asked<'_> {
        Asked {
            host: Some(host),
            at: Some("127.0.0.1".parse().unwrap()),
            ..Asked::default()
        }
    }

    #[test]
    fn it_answers_to_its_own_names_alone() {
        let local = local();
        for host in [
            "localhost",
            "LOCALHOST:7780",
            "127.0.0.1:7780",
            "localhost:1",
        ] {
            assert_eq!(local.check_read(&asked(host)), Ok(()), "{host}");
        }
        for host in [
            "evil.example.org",
            "127.0.0.1.example.org",
            "127.0.0.2:7780",
            "localhost@evil.example.org",
            "evil@localhost",
            "",
            "local host",
            "[::1]:7780",
        ] {
            assert_eq!(local.check_page(&asked(host)), Err(Denied::Host), "{host}");
        }
        assert_eq!(local.check_page(&Asked::default()), Err(Denied::Host));
        let v6 = Asked {
            at: Some("::1".parse().unwrap()),
            ..asked("[::1]:7780")
        };
        assert_eq!(local.check_page(&v6), Ok(()));
        let mapped = Asked {
            at: Some("::ffff:127.0.0.1".parse().unwrap()),
            ..asked("127.0.0.1:7780")
        };
        assert_eq!(local.check_page(&mapped), Ok(()), "of a socket for both");
    }

    #[test]
    fn an_address_may_be_one_of_its_names() {
        let mut remote = remote();
        for host in ["192.0.2.1:7780", "[2001:db8::1]:7780"] {
            assert_eq!(remote.check_page(&asked(host)), Err(Denied::Host), "{host}");
        }
        let names = ["192.0.2.1", "[2001:db8::1]"].map(str::to_owned);
        remote.names.extend(names);
        for host in ["192.0.2.1:7780", "[2001:db8::1]:7780"] {
            assert_eq!(remote.check_page(&asked(host)), Ok(()), "{host}");
        }
        assert_eq!(remote.check_page(&asked("192.0.2.2")), Err(Denied::Host));
    }

    #[test]
    fn beyond_loopback_nothing_is_told_without_the_token() {
        let remote = remote();
        let mut request = asked("pool.example.org:7780");
        assert_eq!(remote.check_page(&request), Ok(()));
        assert_eq!(remote.check_read(&request), Err(Denied::NoToken));
        let right = format!("Bearer {TOKEN}");
        request.authorization = Some(&right);
        assert_eq!(remote.check_read(&request), Ok(()));
        request.host = Some("localhost");
        assert_eq!(remote.check_read(&request), Err(Denied::Host));
    }

    #[test]
    fn tokens_that_are_nearly_right_are_wrong() {
        let remote = remote();
        let longer = format!("Bearer {TOKEN}0");
        let (shorter, other) = (&longer[..longer.len() - 2], "Bearer ");
        for (shown, why) in [
            (&*longer, Denied::WrongToken),
            (shorter, Denied::WrongToken),
            (other, Denied::WrongToken),
            (TOKEN, Denied::NoToken),
            ("Basic abc", Denied::NoToken),
        ] {
            let request = Asked {
                authorization: Some(shown),
                ..asked("pool.example.org")
            };
            assert_eq!(remote.check_read(&request), Err(why), "{shown}");
        }
        assert!(!format!("{remote:?}").contains(TOKEN), "it is in no log");
    }

    #[test]
    fn pages_of_other_sites_read_and_order_nothing() {
        let local = local();
        let right = format!("Bearer {TOKEN}");
        let own = Asked {
            origin: Some("http://localhost:7780"),
            site: Some("same-origin"),
            authorization: Some(&right),
            ..asked("localhost:7780")
        };
        assert_eq!(local.check_order(&own), Ok(()));
        assert_eq!(local.check_read(&own), Ok(()));
        for origin in [
            "http://localhost:7781",
            "https://localhost:7780",
            "http://evil.example.org",
            "null",
        ] {
            let request = Asked {
                origin: Some(origin),
                ..own
            };
            assert_eq!(local.check_order(&request), Err(Denied::Site), "{origin}");
            assert_eq!(local.check_read(&request), Err(Denied::Site), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            let request = Asked {
                site: Some(site),
                ..own
            };
            assert_eq!(local.check_order(&request), Err(Denied::Site), "{site}");
            assert_eq!(local.check_read(&request), Err(Denied::Site), "{site}");
        }
        let silent = Asked {
            origin: None,
            ..own
        };
        assert_eq!(
            local.check_order(&silent),
            Err(Denied::Site),
            "orders say from where"
        );
    }

    #[test]
    fn without_a_token_of_its_own_it_is_read_only() {
        let local = Access {
            token: None,
            ..local()
        };
        let right = format!("Bearer {TOKEN}");
        let own = Asked {
            origin: Some("http://localhost"),
            authorization: Some(&right),
            ..asked("localhost")
        };
        assert_eq!(local.check_order(&own), Err(Denied::ReadOnly));
        assert_eq!(local.check_read(&own), Ok(()));
    }
}

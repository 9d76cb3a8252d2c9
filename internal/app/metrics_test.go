package app

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestAnAddressForMetricsInUseIsNamedWithItsSetting(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = listenForMetrics(t.Context(), taken.Addr().String(), "/nowhere/url")
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) || !strings.Contains(err.Error(), "CAY_METRICS_LISTEN") {
		t.Errorf("the error is: %v", err)
	}
}

func TestWithoutAnAddressThereIsNoListenerForMetrics(t *testing.T) {
	if l, err := listenForMetrics(t.Context(), "", ""); l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}

func TestAListenerForMetricsThatOthersCanReachIsWarnedOf(t *testing.T) {
	for address, warns := range map[string]bool{"127.0.0.1:0": false, "[::1]:0": false, "0.0.0.0:0": true} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s cannot be tried here: %v", address, err)
			continue
		}
		var log strings.Builder
		serveMetrics(http.NotFoundHandler(), l, slog.New(slog.NewTextHandler(&log, nil)))()
		if got := strings.Contains(log.String(), "level=WARN"); got != warns {
			t.Errorf("%s: warned %v, want %v\n%s", address, got, warns, log.String())
		}
	}
}

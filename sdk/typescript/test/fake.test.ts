import { suite } from "./suite.js";
import { fakeTarget } from "./target.js";

suite("the SDK against the fake", fakeTarget);

"""What a provider allows: kinds of rules, and what worker groups, policies and pods say of them."""
